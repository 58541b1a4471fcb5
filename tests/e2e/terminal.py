"""terminal.py - a program at a pseudo-terminal, for the end-to-end tests of what a person sees.

A Terminal runs a program, sends keys and waits for text; `screen` is all that was written so far.
A wait that is not fulfilled fails the test with what was on the screen.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time


class Terminal:
    def __init__(self, argv, env=None, columns=100, rows=40):
        self.screen = ""
        self.seen = 0  # how much of the screen earlier waits have passed
        self.code = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(env or {})
            os.execv(argv[0], argv)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def read(self, seconds):
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.screen += data.decode(errors="replace")
        return bool(data)

    def wait(self, text, seconds=60):
        """Waits until text comes after what earlier waits saw."""
        end = time.monotonic() + seconds
        while text not in self.screen[self.seen:]:
            if time.monotonic() > end or not self.read(0.1):
                fail(f"{text!r} did not come; the screen: {self.screen[self.seen:]!r}")
        at = self.screen.index(text, self.seen) + len(text)
        passed = self.screen[self.seen:at]
        self.seen = at
        return passed

    def plain(self):
        """The screen without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", self.screen)

    def settle(self, seconds=0.2):
        """Reads until nothing more comes."""
        size = -1
        while size != len(self.screen):
            size = len(self.screen)
            self.read(seconds)

    def ready(self, seconds=60):
        """Waits for a prompt at the start of a line, and until keys are read one by one."""
        end = time.monotonic() + seconds
        while not re.search(r"(^|\n)[^\n]*> $", self.plain()) or self.echoes():
            if time.monotonic() > end or not self.read(0.05):
                fail(f"no prompt; the screen: {self.screen!r}")
        self.seen = len(self.screen)

    def echoes(self):
        return termios.tcgetattr(self.fd)[3] & termios.ECHO

    def leave(self, seconds=60):
        """Waits for the end; the exit code."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                fail(f"it did not end; the screen: {self.screen!r}")
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def ends(self):
        """Waits for the end, which must be a success."""
        check(self.leave() == 0, f"exit {self.code}; the screen: {self.screen!r}")


def fail(why):
    print(f"FAILED: {why}", file=sys.stderr)
    sys.exit(1)


def check(holds, why):
    if not holds:
        fail(why)
