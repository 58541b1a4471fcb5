"""test_native.py - the engine in this process: the header's structs, and what a program does with it."""

import ctypes
import gc
import os
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

from support import MODEL, ROOT

from kakeya import (InvalidArgumentError, RpcCancelledError, SessionBusyError, SessionClosedError,
                    StopReason, UnavailableError, _abi, native)

HEADER = os.path.join(ROOT, "include", "kakeya.h")
LIBRARY = os.environ.get("KAKEYA_LIBRARY") or os.path.join(ROOT, "build", "libkakeya.so")
TEXT = "def main():"


def header():
    with open(HEADER, encoding="utf-8") as f:
        return re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)


class Header(unittest.TestCase):
    """_abi.py says what kakeya.h says."""

    def test_structs(self):
        compiler = os.environ.get("CC") or shutil.which("cc")
        if not compiler:
            self.skipTest("no C compiler")
        lines, want = [], {}
        for name, struct in _abi.STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            want[name] = ctypes.sizeof(struct)
            for field, *_ in struct._fields_:
                of = getattr(struct, field)
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                             f"sizeof((({name} *)0)->{field}));")
                want[f"{name}.{field}"] = of.offset, of.size
        numbers = [n for n in dir(_abi) if re.fullmatch("KK_[A-Z0-9_]+", n)]
        for name in numbers:
            lines.append(f'printf("{name} %d\\n", (int){name});')
            want[name] = getattr(_abi, name)
        program = "#include <stdio.h>\n#include <kakeya.h>\nint main(void) {\n%s\nreturn 0;\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            source, binary = os.path.join(folder, "sizes.c"), os.path.join(folder, "sizes")
            with open(source, "w", encoding="ascii") as f:
                f.write(program % "\n".join(lines))
            subprocess.run([compiler, "-I", os.path.dirname(HEADER), "-o", binary, source], check=True)
            said = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
        got = {}
        for line in said.splitlines():
            name, *values = line.split()
            got[name] = int(values[0]) if len(values) == 1 else tuple(map(int, values))
        self.assertEqual(got, want)
        self.assertGreater(len(numbers), 30)

    def test_all_of_it(self):
        """No struct, field, function or argument is missing, and none is in another order."""
        text = header()
        structs = re.findall(r"typedef struct \{([^}]*)\} (kk_\w+);", text)
        self.assertEqual({name for _, name in structs}, set(_abi.STRUCTS))
        for body, name in structs:
            fields = []
            for declaration in body.split(";"):
                found = re.findall(r"(\w+)(?:\[[^\]]*\])?\s*(?:,|$)", declaration.strip())
                fields += found if declaration.strip() else []
            self.assertEqual(fields, [f[0] for f in _abi.STRUCTS[name]._fields_], name)
        functions = re.findall(r"KK_API [\w \*]*?\*?(kk_\w+)\(((?:[^()]|\([^()]*\))*)\);", text)
        self.assertEqual({name for name, _ in functions}, set(_abi.FUNCTIONS))
        for name, arguments in functions:
            flat = re.sub(r"\([^()]*\)", "", re.sub(r"\(\*\w+\)", "", arguments))
            count = 0 if flat.strip() == "void" else flat.count(",") + 1
            self.assertEqual(count, len(_abi.FUNCTIONS[name][1]), name)


@unittest.skipUnless(os.path.exists(LIBRARY), "no libkakeya.so")
class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = native.Engine(MODEL, library=LIBRARY, threads=1)

    @classmethod
    def tearDownClass(cls):
        gc.collect()
        cls.engine.close()

    def test_engine(self):
        info = self.engine.info()
        self.assertGreater(info["vocab"], 1000)
        self.assertEqual(self.engine.device()["device"], "cpu")
        self.assertIn("kv.full", self.engine.memory())
        self.assertTrue(self.engine.stop_ids)
        self.assertIsNone(self.engine.drafter())
        self.assertNotEqual(self.engine.fingerprints()["model"], 0)
        with self.assertRaises(InvalidArgumentError) as caught:
            native.Engine("/nowhere", library=LIBRARY)
        self.assertIn("/nowhere", str(caught.exception))
        with self.assertRaises(TypeError):
            native.Engine(MODEL, library=LIBRARY, thread=1)
        with self.assertRaises(UnavailableError):
            native.load_library("/nowhere/libkakeya.so")

    def test_tokenizer(self):
        with native.Tokenizer(MODEL, library=LIBRARY) as own:
            for tok in own, self.engine.tokenizer:
                ids = tok.encode("caf\u00e9 \U0001f600", bos=True)
                self.assertEqual(ids[0], tok.special("<bos>"))
                self.assertEqual(tok.decode(ids), "caf\u00e9 \U0001f600")
                self.assertEqual(tok.decode_bytes(tok.encode(b"\xff\xfe")), b"\xff\xfe")
                self.assertIsNone(tok.special("<no such>"))
                self.assertEqual(len(tok), len(own))
            messages = [{"role": "user", "content": "Name a sea."}]
            text = native.render_chat(messages, library=LIBRARY)
            self.assertIn("Name a sea.", text)
            self.assertEqual(own.encode_chat(messages), own.encode(text, special=True))
        with self.assertRaises(SessionClosedError):
            own.encode("x")

    def test_generate(self):
        seen, texts, best = [], [], []
        with self.engine.session() as s:
            s.append_text(TEXT)
            made = s.generate(24, ignore_eos=True, on_token=seen.append, on_text=texts.append,
                              on_logprobs=best.append, n_logprobs=3)
            self.assertEqual(seen, made.tokens)
            self.assertEqual("".join(texts), made.text)
            self.assertEqual(made.text, self.engine.tokenizer.decode(made.tokens))
            self.assertEqual([b.token for b in best], made.tokens)
            self.assertTrue(all(b.best[0] == (b.token, b.logprob) and len(b.best) == 3 for b in best))
            self.assertEqual(made.result.stop_reason, StopReason.MAX_TOKENS)
            self.assertEqual(s.tokens()[-24:], made.tokens)
            logits = s.logits()
            self.assertEqual(len(logits), self.engine.info()["vocab"])
            self.assertEqual(s.generate(1, ignore_eos=True).tokens, [logits.index(max(logits))])
            self.assertGreater(s.kv_bytes(), 0)

    def test_stops(self):
        with self.engine.session() as s:
            s.append_text(TEXT)
            start = len(s)
            whole = s.generate(24, ignore_eos=True)
            s.rewind(start)
            stop = whole.text[6:10]
            cut = s.generate(24, ignore_eos=True, stop=stop)
            self.assertEqual((cut.text, cut.result.stop_reason),
                             (whole.text[:whole.text.index(stop)], StopReason.STOP_TEXT))
            s.rewind(start)
            seen = []
            two = s.generate(24, ignore_eos=True, on_token=lambda t: len(seen + [seen.append(t)]) < 3)
            self.assertEqual((two.tokens, two.result.stop_reason),
                             (whole.tokens[:2], StopReason.CANCELLED))
            s.rewind(start)
            ended = s.generate(24, stop_token_ids=[whole.tokens[3]])
            self.assertEqual(ended.result.stop_reason, StopReason.EOS)

    def test_choices(self):
        with self.engine.session() as s:
            s.append_text(TEXT)
            self.assertEqual(s.generate(3, logit_bias={7: 1e4}, ignore_eos=True).tokens, [7, 7, 7])
            self.assertEqual(set(s.generate(3, allowed=[8], ignore_eos=True).tokens), {8})
            n = len(s)
            made = s.generate(4, allowed_at=lambda t: [len(t) - n + 20], ignore_eos=True)
            self.assertEqual(made.tokens, [20, 21, 22, 23])
            with self.assertRaises(InvalidArgumentError):
                s.generate(1, allowed=[-1])

    def test_what_callbacks_raise(self):
        class Odd(Exception):
            pass

        def fail(*_):
            raise Odd
        with self.engine.session() as s:
            for part in "on_token", "on_text", "on_logprobs", "allowed_at":
                s.append_text(TEXT)
                with self.assertRaises(Odd, msg=part):
                    s.generate(24, **{part: fail})
            with self.assertRaises(Odd):
                s.append([5] * 300, progress=fail)
            n = len(s)
            with self.assertRaises(RpcCancelledError):
                s.append([5] * 300, progress=lambda done, total: False)
            self.assertEqual(len(s), n)

    def test_one_at_a_time(self):
        """A session in use refuses others, and neither it nor its engine can be closed."""
        refused = []

        def meddle(_):
            for call in (lambda: s.append([5]), s.close, self.engine.close, lambda: len(s)):
                try:
                    call()
                except SessionBusyError as why:
                    refused.append(why.rpc_code)
            return False
        with self.engine.session() as s:
            s.append_text(TEXT)
            s.generate(5, on_token=meddle)
            self.assertEqual(refused, ["ABORTED"] * 4)
            self.assertFalse(self.engine.closed)
        with self.assertRaises(SessionClosedError):
            s.append([5])
        s.close()

    def test_many_threads(self):
        """Sessions of eight threads share passes, and each has the tokens it would have alone."""
        prompts = [f"def f{i}(x):" for i in range(8)]

        def run(prompt):
            with self.engine.session() as s:
                s.append_text(prompt)
                return s.generate(48, ignore_eos=True)
        alone = [run(p) for p in prompts]
        before, out = self.engine.sharing(), [None] * 8
        threads = [threading.Thread(target=lambda i=i: out.__setitem__(i, run(prompts[i])))
                   for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        after = self.engine.sharing()
        for a, b in zip(alone, out):
            self.assertEqual((a.tokens, a.result.logits_hash), (b.tokens, b.result.logits_hash))
        self.assertGreater(after["shared"], before["shared"])

    def test_forks_files_and_options(self):
        with self.engine.session(context=512, kv_format="q8", kv_full="window", window=32,
                                 spec="ngram") as s, tempfile.TemporaryDirectory() as folder:
            self.assertEqual(s.context, 512)
            s.append(range(100, 200))
            s.checkpoint()
            with s.fork() as fork, s.fork(50) as short:
                self.assertEqual((len(fork), len(short)), (100, 50))
                whole = fork.generate(16, ignore_eos=True)
                self.assertEqual(whole.result.history_truncated_dropped, 64 - 32 - 4)
            path = os.path.join(folder, "saved")
            s.save(path)
            with self.engine.load(path) as loaded:
                self.assertTrue(loaded.exact)
                again = loaded.generate(16, ignore_eos=True)
            self.assertEqual((again.tokens, again.result.logits_hash),
                             (whole.tokens, whole.result.logits_hash))
            for wrong in {"kv_format": "q3"}, {"kv_full": "native"}, {"spec": "x"}:
                with self.assertRaises(InvalidArgumentError, msg=wrong):
                    self.engine.session(**wrong)
        with self.assertRaises(InvalidArgumentError):
            self.engine.session(context=8).append(range(9))

    def test_what_is_dropped_is_freed(self):
        """A session nobody holds gives its K/V back at once, without the garbage collector."""
        gc.disable()
        self.addCleanup(gc.enable)
        before = self.engine.memory()["kv.full"]
        s = self.engine.session()
        s.append(range(100, 400))
        self.assertGreater(self.engine.memory()["kv.full"], before)
        del s
        self.assertEqual(self.engine.memory()["kv.full"], before)
        other = native.Engine(MODEL, library=LIBRARY, threads=1)
        held = other.session()
        tok = other.tokenizer
        other.close()  # closes the session first
        self.assertTrue(held.closed)
        with self.assertRaises(SessionClosedError):
            tok.encode("x")


if __name__ == "__main__":
    unittest.main()
