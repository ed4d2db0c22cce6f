//! Configurations of the other proxies: all that each has against engines that misbehave is on,
//! with its usual numbers. All probe `/health` every second, and give an answer 30 s to begin,
//! because a sound prefill may take that long.

use std::net::SocketAddr;

/// HAProxy 2.6: health by HTTP, failed answers count as failed probes, three retries on another
/// server for everything that it can retry.
pub(super) fn haproxy(front: SocketAddr, engines: &[SocketAddr]) -> String {
    let servers: String = engines.iter().enumerate().map(|(n, engine)| format!("    server e{n} {engine}\n")).collect();
    format!(
        "global
    nbthread 1
    maxconn 8000
defaults
    mode http
    timeout connect 1s
    timeout http-request 10s
    timeout http-keep-alive 600s
    timeout client 600s
    timeout server 30s
    retries 3
    option redispatch 1
    retry-on all-retryable-errors
    option http-no-delay
frontend front
    bind {front}
    default_backend engines
backend engines
    balance leastconn
    option httpchk GET /health
    default-server check inter 1s fall 2 rise 2 observe layer7 error-limit 5 on-error mark-down
{servers}"
    )
}

/// Envoy: outlier detection and active health checks, retries on another host within its retry
/// budget.
pub(super) fn envoy(front: SocketAddr, engines: &[SocketAddr]) -> String {
    let address = |a: &SocketAddr| format!("{{ socket_address: {{ address: {}, port_value: {} }} }}", a.ip(), a.port());
    let endpoint = |engine: &SocketAddr| format!("        - endpoint: {{ address: {} }}\n", address(engine));
    let endpoints: String = engines.iter().map(endpoint).collect();
    let listen = address(&front);
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let previous = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate";
    format!(
        r#"static_resources:
  listeners:
  - address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {manager}
          stat_prefix: front
          stream_idle_timeout: 600s
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": {router} }}
          route_config:
            virtual_hosts:
            - name: engines
              domains: ["*"]
              routes:
              - match: {{ prefix: / }}
                route:
                  cluster: engines
                  timeout: 0s
                  retry_policy:
                    retry_on: 5xx,reset,connect-failure,retriable-status-codes
                    retriable_status_codes: [429]
                    num_retries: 3
                    per_try_idle_timeout: 30s
                    retry_host_predicate:
                    - name: envoy.retry_host_predicates.previous_hosts
                      typed_config: {{ "@type": {previous} }}
                    host_selection_retry_max_attempts: 5
  clusters:
  - name: engines
    type: STATIC
    connect_timeout: 1s
    lb_policy: LEAST_REQUEST
    circuit_breakers:
      thresholds:
      - max_connections: 65536
        max_pending_requests: 65536
        max_requests: 65536
        retry_budget: {{ budget_percent: {{ value: 20 }}, min_retry_concurrency: 10 }}
    outlier_detection:
      consecutive_5xx: 5
      interval: 1s
      base_ejection_time: 10s
      max_ejection_percent: 50
    health_checks:
    - timeout: 1s
      interval: 1s
      unhealthy_threshold: 2
      healthy_threshold: 2
      http_health_check: {{ path: /health }}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
{endpoints}"#
    )
}

/// smg: retries and its circuit breaker as they are by default.
pub(super) fn smg(front: SocketAddr, engines: &[SocketAddr], metrics: SocketAddr) -> Vec<String> {
    let (host, port) = (front.ip().to_string(), front.port().to_string());
    let (metrics_host, metrics_port) = (metrics.ip().to_string(), metrics.port().to_string());
    let mut words: Vec<String> = ["launch", "--log-level", "error", "--host", &host, "--port", &port].map(str::to_owned).to_vec();
    words.extend(["--prometheus-host", &metrics_host, "--prometheus-port", &metrics_port].map(str::to_owned));
    words.extend(["--policy", "power_of_two", "--health-check-interval-secs", "1"].map(str::to_owned));
    words.extend(["--worker-startup-check-interval", "1", "--worker-urls"].map(str::to_owned));
    words.extend(engines.iter().map(|engine| format!("http://{engine}")));
    words
}
