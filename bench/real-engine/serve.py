"""Runs llama.cpp's HTTP server: `serve.py MODEL PORT NAME`. Prints "ready URL" when it answers; SIGTERM or SIGINT ends it."""

import os
import signal
import sys
import urllib.request

import xllamacpp

SLOTS = 4  # requests decoded together; more wait in the server's queue
CONTEXT = 2048  # tokens of each slot
HTTP_THREADS = 64  # each open request holds one; with fewer, /health stops answering under load


def main(model, port, name):
    # Blocked before the server starts its threads, so that they inherit the mask and only sigwait below takes a signal.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.model_alias = {name}
    settings.hostnames = ["127.0.0.1"]
    settings.port = int(port)
    settings.n_parallel = SLOTS
    settings.n_ctx = CONTEXT * SLOTS
    settings.cpuparams.n_threads = 1
    settings.cpuparams_batch.n_threads = 1
    settings.n_threads_http = HTTP_THREADS
    settings.endpoint_metrics = True
    settings.ui = False
    settings.fit_params = False
    settings.verbosity = 1
    # Plain sampling: the chances built into the model are the chances of the text.
    settings.sampling.temp = 1.0
    settings.sampling.top_k = 0
    settings.sampling.top_p = 1.0
    settings.sampling.min_p = 0.0

    server = xllamacpp.Server(settings)
    with urllib.request.urlopen(f"{server.listening_address}/health", timeout=10):
        print("ready", server.listening_address, flush=True)
    signal.sigwait(ends)
    # The server's own way out waits for queued requests, which may never end; a signal means now.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
