use super::*;

#[track_caller]
fn read(page: &str) -> EngineSignals {
    from_metrics(page.as_bytes()).expect("known")
}

fn timings(sum_s: f64, count: f64) -> Option<Timings> {
    Some(Timings { sum_s, count })
}

#[test]
fn vllm_of_today() {
    let page = r#"
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 8.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.3
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 12.5
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 50
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 20
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 1000
vllm:time_per_output_token_seconds_sum{engine="0",model_name="m"} 7
vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 7
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 90
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 48
"#;
    let wanted = EngineSignals {
        running: Some(20.0),
        waiting: Some(3.0),
        kv_usage_frac: Some(0.4),
        ranks: Some(2),
        prefix: Some(PrefixCache { queries: 1000.0, hits: 250.0 }),
        ttft: timings(12.5, 50.0),
        itl: timings(20.0, 1000.0),
        e2e: timings(90.0, 48.0),
        ..EngineSignals::nothing(Family::Vllm)
    };
    assert_eq!(read(page), wanted);
    assert_eq!(wanted.in_engine(), Some(23.0));
}

#[test]
fn vllm_of_old() {
    let found = read(
        "vllm:num_requests_running{model_name=\"m\"} 5\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.35\n\
         vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 40\nvllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 10\n\
         vllm:time_per_output_token_seconds_sum{model_name=\"m\"} 1.5\nvllm:time_per_output_token_seconds_count{model_name=\"m\"} 9\n",
    );
    assert_eq!((found.kv_usage_frac, found.itl), (Some(0.35), timings(1.5, 9.0)));
    assert_eq!(found.prefix, Some(PrefixCache { queries: 40.0, hits: 10.0 }));
    assert_eq!((found.waiting, found.in_engine()), (None, None), "what is not said is not 0");
}

#[test]
fn sglang_with_both_prefixes_sums_ranks_and_not_shards() {
    for prefix in ["sglang:", "sglang_"] {
        let page = format!(
            "{prefix}num_running_reqs{{model_name=\"m\",tp_rank=\"0\",dp_rank=\"0\"}} 4\n\
             {prefix}num_running_reqs{{model_name=\"m\",tp_rank=\"1\",dp_rank=\"0\"}} 4\n\
             {prefix}num_running_reqs{{model_name=\"m\",tp_rank=\"2\",dp_rank=\"1\"}} 3\n\
             {prefix}num_queue_reqs{{model_name=\"m\",dp_rank=\"0\",priority=\"\"}} 2\n\
             {prefix}num_queue_reqs{{model_name=\"m\",dp_rank=\"0\",priority=\"7\"}} 2\n\
             {prefix}token_usage{{model_name=\"m\",dp_rank=\"0\"}} 0.28\n\
             {prefix}prompt_tokens_total{{model_name=\"m\",is_streaming=\"true\"}} 700\n\
             {prefix}prompt_tokens_total{{model_name=\"m\",is_streaming=\"false\"}} 300\n\
             {prefix}cached_tokens_total{{model_name=\"m\"}} 120\n\
             {prefix}time_to_first_token_seconds_sum{{model_name=\"m\"}} 2.5\n\
             {prefix}time_to_first_token_seconds_count{{model_name=\"m\"}} 10\n"
        );
        let found = read(&page);
        assert_eq!((found.family, found.running, found.waiting, found.ranks), (Family::Sglang, Some(7.0), Some(2.0), Some(2)));
        assert_eq!((found.kv_usage_frac, found.ttft, found.itl), (Some(0.28), timings(2.5, 10.0), None));
        assert_eq!(found.prefix, Some(PrefixCache { queries: 1000.0, hits: 120.0 }));
    }
}

#[test]
fn trtllm_triton_tgi_and_llama_cpp() {
    let found = read(
        "trtllm_num_requests_running{model_name=\"m\"} 2\ntrtllm_num_requests_waiting{model_name=\"m\"} 1\n\
         trtllm_kv_cache_utilization{model_name=\"m\"} 0.62\ntrtllm_kv_cache_reused_blocks_total 30\n\
         trtllm_kv_cache_missed_blocks_total 70\ntrtllm_time_to_first_token_seconds_sum 3\ntrtllm_time_to_first_token_seconds_count 6\n",
    );
    assert_eq!((found.family, found.in_engine(), found.kv_usage_frac), (Family::TrtllmServe, Some(3.0), Some(0.62)));
    assert_eq!((found.prefix, found.ttft), (Some(PrefixCache { queries: 100.0, hits: 30.0 }), timings(3.0, 6.0)));

    let found = read(
        "nv_trt_llm_request_metrics{model=\"m\",request_type=\"context\",version=\"1\"} 9\n\
         nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 5\n\
         nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 6\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"m\",version=\"1\"} 0.25\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"m\",version=\"1\"} 6239\n",
    );
    assert_eq!((found.family, found.running, found.waiting), (Family::Triton, Some(5.0), Some(6.0)));
    assert_eq!(found.kv_usage_frac, Some(0.25));

    let found = read(
        "tgi_queue_size 5\ntgi_batch_current_size 8\ntgi_request_mean_time_per_token_duration_sum 2\ntgi_request_mean_time_per_token_duration_count 200\n",
    );
    assert_eq!((found.family, found.in_engine(), found.kv_usage_frac), (Family::Tgi, Some(13.0), None));
    assert_eq!(found.itl, timings(2.0, 200.0));

    let found = read("llamacpp:requests_processing 4\nllamacpp:requests_deferred 46\nllamacpp:kv_cache_usage_ratio 0.42\n");
    assert_eq!((found.family, found.in_engine(), found.kv_usage_frac), (Family::LlamaCpp, Some(50.0), Some(0.42)));
}

#[test]
fn routers_in_front_of_replicas_tell_how_many_live() {
    let found = read(
        "vllm:num_requests_running{server=\"a\"} 3\nvllm:num_requests_running{server=\"b\"} 4\nvllm:healthy_pods_total{server=\"a\"} 1\nvllm:healthy_pods_total{server=\"b\"} 0\n",
    );
    assert_eq!((found.family, found.running, found.ready_replicas), (Family::Vllm, Some(7.0), Some(1)));
    let found = read(
        "smg_worker_health{worker=\"http://a\"} 1\nsmg_worker_health{worker=\"http://b\"} 1\nsmg_worker_requests_active{worker=\"http://a\"} 9\n",
    );
    assert_eq!((found.family, found.running, found.ready_replicas), (Family::SglangRouter, Some(9.0), Some(2)));
    let found = read("sgl_router_worker_health{worker=\"http://a\"} 0\n");
    assert_eq!((found.running, found.ready_replicas), (None, Some(0)));
}

#[test]
fn values_that_cannot_be_true_make_the_sum_unknown() {
    for bad in ["NaN", "+Inf", "-1", "1e300"] {
        let found = read(&format!(
            "vllm:num_requests_running{{engine=\"0\"}} 5\nvllm:num_requests_running{{engine=\"1\"}} {bad}\nvllm:num_requests_waiting 2\n"
        ));
        assert_eq!((found.running, found.waiting), (None, Some(2.0)), "{bad}");
    }
    assert_eq!(read("vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 55\n").kv_usage_frac, None);
}

#[test]
fn pages_of_others_are_not_known() {
    for page in [
        "",
        "process_cpu_seconds_total 5\n",
        "<html>not found</html>",
        "vllm:num_requests_running\n",
        "vllm:num_requests_running_x 4\n",
    ] {
        assert_eq!(from_metrics(page.as_bytes()), None, "{page:?}");
    }
}

#[test]
fn too_many_series_are_not_summed_by_half() {
    let page: String = (0..=SERIES_MAX).map(|n| format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\n")).collect();
    assert_eq!(from_metrics(page.as_bytes()).and_then(|found| found.running), None);
}

proptest::proptest! {
    #[test]
    fn any_bytes_give_signals_that_can_be_true(
        lines in proptest::collection::vec(("(vllm:|sglang_)?(num_requests_running|kv_cache_usage_perc|token_usage)?", "(\\{[a-z\"=,\\\\}]{0,20}\\})?", "[0-9eE.NaInf+-]{0,8}"), 0..20),
        noise in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
    ) {
        let mut page: Vec<u8> = lines.iter().flat_map(|(name, labels, value)| format!("{name}{labels} {value}\n").into_bytes()).collect();
        page.extend(noise);
        if let Some(found) = from_metrics(&page) {
            proptest::prop_assert!(found.running.is_none_or(|n| n >= 0.0 && n.is_finite()));
            proptest::prop_assert!(found.kv_usage_frac.is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
