//! Every HTTP endpoint of ilb but the proxy's own. docs/admin.md is made from this table.

/// One endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// Where it is served.
    pub place: Place,
    pub method: &'static str,
    pub path: &'static str,
    /// The body of the request, or "none".
    pub request: &'static str,
    /// The body of the answer.
    pub answer: &'static str,
    /// Status codes besides those of every HTTP server.
    pub statuses: &'static str,
}

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `admin.listen`.
    Port,
    /// `admin.socket`.
    Socket,
    /// `control.listen`.
    Controller,
}

macro_rules! endpoints {
    ($($place:ident $method:ident $path:literal $request:literal $answer:literal $statuses:literal;)*) => {
        pub static ENDPOINTS: &[Endpoint] = &[$(Endpoint {
            place: Place::$place,
            method: stringify!($method),
            path: $path,
            request: $request,
            answer: $answer,
            statuses: $statuses,
        }),*];
    };
}

endpoints! {
    Port GET "/metrics" "none" "the metrics of metrics.md as Prometheus text 0.0.4" "200";
    Port GET "/healthz" "none" "`ok`: the process runs" "200";
    Port GET "/readyz" "none" "`generation EPOCH.COUNT`, or the reason why not"
        "200 ready; 503 no snapshot, or no engine can be reached";
    Socket GET "/v1/status" "none" "as `ilb status --json`" "200";
    Socket GET "/v1/engines" "none" "as `ilb engines --json`" "200";
    Socket GET "/v1/weights" "none" "as `ilb weights --json`" "200; 503 no snapshot yet";
    Socket POST "/v1/explain" "`{\"cluster\": \"a\", \"class\": \"chat\", \"engine\": \"e1\"}`, each may be left out"
        "as `ilb explain --json`" "200; 400 unknown name or too many weights; 409 no control plane here; 503 no plan yet";
    Socket GET "/v1/snapshots" "none" "as `ilb snapshots --json`" "200; 500 the folder cannot be read";
    Socket POST "/v1/pins" "`{\"cluster\": \"a\", \"class\": \"chat\", \"weights\": [[\"e1\", 1.0]]}`" "`null`"
        "200; 400 refused, with the reason; 409 no control plane here";
    Socket DELETE "/v1/pins" "`{\"cluster\": \"a\", \"class\": \"chat\"}`, each may be left out" "how many pins were taken back"
        "200; 400 refused, with the reason; 409 no control plane here";
    Socket POST "/v1/orders"
        "`{\"engine\": \"e1\", \"order\": \"drain\", \"ttl_ms\": 600000, \"reason\": \"new driver\", \"by\": \"alice\", \"force\": false}`; `order` is `drain`, `undrain`, `eject` or `restore`; all from `ttl_ms` on may be left out"
        "`{\"generation\": \"1.7\", \"shortage\": null}`: the generation that tells data planes, null if the next plan does; what is left without capacity"
        "200; 400 refused, with the reason; 409 no control plane here";
    Socket POST "/v1/rollback" "`{\"generation\": \"1.3\", \"ttl_ms\": 60000}`, the second may be left out"
        "`{\"generation\": \"1.7\"}`: the new generation" "200; 400 refused, with the reason; 409 no control plane here";
    Controller GET "/v1/snapshot" "none; `?after=N` waits for a newer one than generation N, as one number"
        "a snapshot, with its entity tag" "200; 204 nothing newer within the long poll; 503 no snapshot";
    Controller GET "/v1/snapshots" "none" "the generations that are kept, as numbers" "200; 503 the store fails";
    Controller GET "/v1/snapshots/{generation}" "none" "a snapshot that is kept" "200; 404 not kept; 503 the store fails";
    Controller POST "/v1/demand" "a data plane's demand report" "none" "204; 400 refused, with the reason; 503 shutting down";
}
