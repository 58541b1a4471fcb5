"""support.py - a server for the tests of the SDK, started once for a module of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
MODEL = os.path.join(ROOT, "models", "tiny", "verifier")
KAKEYA = os.environ.get("KAKEYA", os.path.join(ROOT, "build", "kakeya"))
GREEDY = dict(temperature=0, ignore_eos=True)
LIMIT = 120  # seconds that a server may take to start or to end

if not os.environ.get("KK_SDK_INSTALLED"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "src"))


class Server:
    """`kakeya serve` with the shipped model."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [KAKEYA, "serve", "--port", "0", "-t", "1", *args], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.port = 0
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(LIMIT) or not self.port:
            self.process.kill()
            raise AssertionError(f"the server is not there: {self.lines}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"listening on https?://.*:(\d+)$", self.lines[-1])
            self.port = int(found.group(1)) if found else self.port
            if "serve: ready:" in line:
                self._ready.set()
        self._ready.set()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT)
        self._reader.join(10)
        if self.process.stderr:
            self.process.stderr.close()
