//! One answer: wait, prefill, tokens.

use std::future::pending;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::api::{Call, Refusal};
use super::fault::{Break, Fault};
use super::reply::{self, Events, Voice};
use super::server::{After, Client, Engine, Gone};
use crate::clock;

/// An answer that is no HTTP: an alert of TLS, then anything.
const GARBAGE: &[u8] = b"\x15\x03\x01\x00\x02\x02\x46\x00\xff\xfe}{ CUDA error \r\n\r\n\x00\x00";

/// Counts a request in one gauge for as long as it lives, however it ends.
struct Counted<'e> {
    engine: &'e Engine,
    stage: Stage,
}

enum Stage {
    Waiting,
    Running { kv_tokens: u64 },
}

impl<'e> Counted<'e> {
    fn waiting(engine: &'e Engine) -> Self {
        engine.metrics.borrow_mut().waiting += 1;
        Self { engine, stage: Stage::Waiting }
    }

    fn running(engine: &'e Engine, prompt_tokens: u32) -> Self {
        let kv_tokens = u64::from(prompt_tokens);
        let mut metrics = engine.metrics.borrow_mut();
        metrics.running += 1;
        metrics.kv_tokens += kv_tokens;
        metrics.prompt_tokens += kv_tokens;
        Self { engine, stage: Stage::Running { kv_tokens } }
    }

    fn generate(&mut self, tokens: u32) {
        if let Stage::Running { kv_tokens } = &mut self.stage {
            *kv_tokens += u64::from(tokens);
            let mut metrics = self.engine.metrics.borrow_mut();
            metrics.kv_tokens += u64::from(tokens);
            metrics.generation_tokens += u64::from(tokens);
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut metrics = self.engine.metrics.borrow_mut();
        match self.stage {
            Stage::Waiting => metrics.waiting -= 1,
            Stage::Running { kv_tokens } => {
                metrics.running -= 1;
                metrics.kv_tokens -= kv_tokens;
            }
        }
    }
}

/// An admitted request and how its answer is to end.
struct Generation<'e> {
    call: &'e Call,
    arrived: Instant,
    /// How the answer breaks off, and after how many tokens.
    broken: Option<(Break, u32)>,
    running: Counted<'e>,
    voice: Voice<'e>,
}

impl Engine {
    /// Serves one call, and records when its client goes before the end.
    pub(super) async fn answer(&self, call: &Call, client: &mut Client<'_>) -> Result<After, Gone> {
        let number = self.answers.get();
        self.answers.set(number + 1);
        let mut sent_tokens = 0;
        let result = self.steps(call, number, client, &mut sent_tokens).await;
        if result.is_err() {
            self.metrics.borrow_mut().lose_client();
            let at_unix_ms = clock::unix_time().as_millis();
            info!(request = number, sent_tokens, at_unix_ms = %at_unix_ms, "client gone, generation stopped");
        }
        result
    }

    async fn steps(&self, call: &Call, number: u64, client: &mut Client<'_>, sent_tokens: &mut u32) -> Result<After, Gone> {
        let arrived = clock::now();
        let fault = self.faults.borrow_mut().next();
        match fault {
            Some(Fault::Status { status, retry_after_s }) => return self.fail_on_command(status, retry_after_s, client).await,
            Some(Fault::Garbage) => {
                client.out.extend_from_slice(GARBAGE);
                client.flush().await?;
                return Ok(After::Close);
            }
            _ => (),
        }
        let broken = match fault {
            Some(Fault::Break { how, after_tokens }) => Some((how, after_tokens)),
            _ => None,
        };
        match self.admission.enter(arrived) {
            Ok(None) => (),
            Ok(Some(turn)) => {
                let _waiting = Counted::waiting(self);
                let _ = client.unless_gone(turn).await?;
            }
            Err(_) => {
                let message = "the queue is full".to_owned();
                self.refuse(client, Refusal { status: 503, kind: "overloaded_error", code: None, message });
                client.flush().await?;
                return Ok(After::KeepAlive);
            }
        }

        let started = clock::now();
        // The load is read before this request is counted: a Poisson arrival sees the average load
        // and is itself no part of it.
        let load_rps = self.load_rps(started);
        self.meter.borrow_mut().record(started);
        let slowness = self.faults.borrow().slowness(started);
        let prompt = Duration::from_secs_f64(f64::from(call.prompt_tokens) * self.settings.prompt_token_ms / 1e3);
        let ttft = (self.settings.pace.ttft(load_rps) + prompt).mul_f64(slowness);
        let running = Counted::running(self, call.prompt_tokens);
        let voice = Voice { number, created: self.started_at, model: &self.models_json[call.model], engine: &self.name_json };
        let generation = Generation { call, arrived, broken, running, voice };
        if call.is_stream {
            return self.stream(generation, started + ttft, client, sent_tokens).await;
        }
        let tokens = self.settings.pace.tbot(load_rps).mul_f64(slowness * f64::from(call.output_tokens));
        self.answer_whole(generation, started + ttft, tokens, client).await
    }

    /// Refuses a request with the status that a fault asks for.
    async fn fail_on_command(&self, status: u16, retry_after_s: Option<u64>, client: &mut Client<'_>) -> Result<After, Gone> {
        let refusal = Refusal { status, kind: "overloaded_error", code: None, message: "fault on command".to_owned() };
        self.metrics.borrow_mut().refuse();
        reply::refusal(&mut client.out, &refusal, &self.settings.name, retry_after_s);
        client.flush().await?;
        Ok(After::KeepAlive)
    }

    /// Answers in one piece, when the last token is due: `tokens` after the first at `due`.
    async fn answer_whole(
        &self,
        mut generation: Generation<'_>,
        due: Instant,
        tokens: Duration,
        client: &mut Client<'_>,
    ) -> Result<After, Gone> {
        if let Some((how, _)) = generation.broken {
            client.sleep_until(due).await?;
            return breaks(how, client).await;
        }
        client.sleep_until(due + tokens).await?;
        let call = generation.call;
        generation.running.generate(call.output_tokens);
        reply::answer(&mut client.out, &self.settings.name, call, generation.voice, self.stamp());
        client.flush().await?;
        self.metrics.borrow_mut().finish(clock::now() - generation.arrived);
        Ok(After::KeepAlive)
    }

    /// Streams token by token, the first one at `due`.
    async fn stream(
        &self,
        mut generation: Generation<'_>,
        mut due: Instant,
        client: &mut Client<'_>,
        sent_tokens: &mut u32,
    ) -> Result<After, Gone> {
        let Generation { call, arrived, broken, .. } = generation;
        if let Some((how, 0)) = broken {
            return breaks(how, client).await;
        }
        // As with real engines, the head comes before prefill: it is no sign of a first token.
        reply::stream_head(&mut client.out, &self.settings.name);
        client.flush().await?;
        let mut events = Events::new(call.endpoint, generation.voice);
        let mut before = arrived;
        for index in 0..call.output_tokens {
            client.sleep_until(due).await?;
            let now = clock::now();
            if index == 0 {
                events.role(&mut client.out);
                self.metrics.borrow_mut().first_token(now - before);
            } else {
                self.metrics.borrow_mut().next_token(now - before);
            }
            before = now;
            events.token(&mut client.out, index, self.stamp());
            client.flush().await?;
            generation.running.generate(1);
            *sent_tokens = index + 1;
            if let Some((how, after_tokens)) = broken
                && after_tokens == index + 1
            {
                return breaks(how, client).await;
            }
            due += self.settings.pace.tbot(self.load_rps(now)).mul_f64(self.faults.borrow().slowness(now));
        }
        // The end of the text is a token too, so a request of n tokens takes n gaps, as in
        // `Profile::latency_ms`.
        client.sleep_until(due).await?;
        events.end(&mut client.out, call);
        client.flush().await?;
        self.metrics.borrow_mut().finish(clock::now() - arrived);
        Ok(After::KeepAlive)
    }

    fn load_rps(&self, now: Instant) -> f64 {
        self.meter.borrow().rate_rps(now)
    }

    fn stamp(&self) -> Option<u64> {
        self.settings.is_stamping.then(clock::monotonic_ns)
    }
}

async fn breaks(how: Break, client: &mut Client<'_>) -> Result<After, Gone> {
    match how {
        Break::Stall => client.unless_gone(pending()).await,
        Break::Reset => Ok(After::Reset),
        Break::Close => Ok(After::Close),
    }
}
