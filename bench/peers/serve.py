#!/usr/bin/env python3
"""Asks `kakeya serve` and llama.cpp's server for completions on one GGUF file, turn and turn about.

usage: serve.py --model FILE.gguf [--llama-server PATH] [--kakeya build/kakeya]
                [--client build/tests/serving] [--threads 2] [--clients 1,4,8] [--requests 32]
                [--prompt 64] [--predict 32] [--turns 3] [--json FILE]

Plain Python; the client that measures is the small one of this project, so that it leaves the
cores to the servers.  Each turn starts either server anew and asks it with each number of clients;
prompts are random ids, another in every request, so that nothing comes from a cache.  Printed are
medians over the turns: requests a second, and the median time to the first token.
"""
import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(a, name, port, clients):
    if name == "kakeya":
        return [a.kakeya, "serve", "-q", "-m", a.model, "-t", str(a.threads), "--port", str(port),
                "-np", str(max(clients)), "-c", str(a.prompt + a.predict + 64)]
    # llama.cpp's context is shared by its slots.
    return [a.llama_server, "-m", a.model, "-t", str(a.threads), "--host", "127.0.0.1", "--port",
            str(port), "-np", str(max(clients)), "-c",
            str(max(clients) * (a.prompt + a.predict + 64))]


def wait_ready(port, server, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"a server ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as r:
                if r.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    sys.exit("a server does not become ready")


def turn(a, name, clients, seed):
    """{clients: what the client measured} of one server's life."""
    port = free_port()
    server = subprocess.Popen(command(a, name, port, clients), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        wait_ready(port, server)
        found = {}
        for n in clients:
            out = subprocess.run(
                [a.client, "ask", "--port", str(port), "--clients", str(n), "--requests",
                 str(a.requests), "--ctx", str(a.prompt), "--predict", str(a.predict), "--seed",
                 str(1000 * seed + n)], check=True, capture_output=True, text=True).stdout
            found[n] = json.loads(out)
        return found
    finally:
        server.terminate()
        server.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--llama-server")
    p.add_argument("--kakeya", default="build/kakeya")
    p.add_argument("--client", default="build/tests/serving")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--clients", default="1,4,8")
    p.add_argument("--requests", type=int, default=32)
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--predict", type=int, default=32)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--json")
    a = p.parse_args()
    clients = [int(n) for n in a.clients.split(",")]
    names = ["kakeya"] + (["llama.cpp"] if a.llama_server else [])
    rows = [{"turn": t, "server": name, "clients": n, **found}
            for t in range(1, a.turns + 1) for name in names
            for n, found in turn(a, name, clients, t).items()]
    print("server     clients  requests/s  first token")
    for name in names:
        for n in clients:
            of = [r for r in rows if r["server"] == name and r["clients"] == n]
            rate = statistics.median(r["requests_s"] for r in of)
            first = statistics.median(r["first_s"]["median"] for r in of)
            print(f"{name:10} {n:7} {rate:11.2f} {1e3 * first:9.1f} ms")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"settings": vars(a), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
