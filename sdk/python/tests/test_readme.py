"""test_readme.py - the examples of README.md run, each in a process of its own."""

import os
import re
import subprocess
import sys
import unittest

from support import HERE, ROOT, Server

LIBRARY = os.environ.get("KAKEYA_LIBRARY")


class Examples(unittest.TestCase):
    def test_all(self):
        with open(os.path.join(os.path.dirname(HERE), "README.md"), encoding="utf-8") as f:
            blocks = re.findall(r"^```python\n(.*?)^```", f.read(), flags=re.M | re.S)
        self.assertEqual(len(blocks), 3)
        server = Server()
        self.addCleanup(server.stop)
        path = os.path.join(os.path.dirname(HERE), "src")
        said = []
        for block in blocks:
            if "kakeya.native" in block and not LIBRARY:
                continue  # an instrumented library cannot be loaded by a plain Python
            code = block.replace("localhost:8080", server.address)
            done = subprocess.run([sys.executable, "-B", "-W", "error", "-c", code], cwd=ROOT, text=True,
                                  env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                                  timeout=120)
            self.assertEqual((done.returncode, done.stderr), (0, ""), block)
            said.append(done.stdout)
        for text in said[0], *said[2:]:
            self.assertRegex(text, r"from sympy[^\x00]*StopReason\.MAX_TOKENS")


if __name__ == "__main__":
    unittest.main()
