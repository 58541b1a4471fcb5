"""test_client.py - both clients against a real server with the shipped model."""

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from support import GREEDY, Server

import kakeya
from kakeya import (AsyncClient, Client, DeadlineExceededError, InvalidArgumentError, Piece,
                    ResourceExhaustedError, RpcCancelledError, SessionBusyError, SessionClosedError,
                    SessionNotFoundError, StopReason, UnauthenticatedError, UnavailableError)

TEXT = "def main():"


def setUpModule():
    global server
    server = Server("-c", "4096", "--max-sessions", "80")
    unittest.addModuleCleanup(server.stop)


class Sync(unittest.TestCase):
    def setUp(self):
        self.client = Client(server.address, timeout=60)
        self.addCleanup(self.client.close)

    def session(self, **options):
        session = self.client.create_session(**options)
        self.addCleanup(session.close)
        return session

    def test_surface(self):
        """What the prototype's client had."""
        self.assertEqual((self.client.address, self.client.closed), (server.address, False))
        s = self.session(client_label="me", eos_token_ids=[5])
        self.assertRegex(s.session_id, "^sess-[0-9a-f]{32}$")
        self.assertIsNone(s.last_stop_reason)
        ids = self.client.tokenize(TEXT)
        self.assertEqual(s.append(ids), len(ids))
        self.assertEqual(s.append([]), len(ids))
        made = list(s.generate(12, **GREEDY))
        self.assertEqual(len(made), 12)
        self.assertEqual(s.last_stop_reason, StopReason.MAX_TOKENS)
        self.assertEqual(s.last_generated_token_count, 12)
        self.assertGreater(s.last_total_duration_seconds, 0)
        self.assertGreaterEqual(s.last_total_duration_seconds, s.last_prefill_duration_seconds)
        self.assertEqual(s.last_history_truncated_dropped, 0)
        info = s.info()
        self.assertEqual((info.history_length, info.client_label, info.turns), (len(ids) + 12, "me", 1))
        self.assertGreater(info.kv_live_bytes, 0)
        self.assertEqual(info.cache_invariant_inv1_violations + info.cache_invariant_inv2_violations
                         + info.cache_invariant_inv3_violations, 0)
        self.assertEqual(s.tokens(), ids + made)
        self.assertEqual((s.close(), s.close(), s.closed), (len(ids) + 12, 0, True))
        for call in (lambda: s.append([1]), lambda: s.generate(1), s.tokens, s.fork):
            with self.assertRaises(SessionClosedError):
                call()
        with self.assertRaises(SessionNotFoundError) as caught:
            s.info()
        self.assertEqual(caught.exception.rpc_code, "NOT_FOUND")

    def test_text(self):
        s, t = self.session(), self.session()
        appended = s.append_text(TEXT)
        self.assertEqual(appended.history_length, appended.added_tokens)
        t.append_text(TEXT)
        pieces = list(s.generate_pieces(24, **GREEDY))
        self.assertTrue(all(isinstance(p, Piece) for p in pieces))
        whole = "".join(p.text for p in pieces)
        self.assertEqual("".join(t.generate_text(24, **GREEDY)), whole)
        self.assertEqual(s.last_result.logits_hash, t.last_result.logits_hash)
        u = self.session()
        u.append_text(TEXT)
        stop = whole[6:10]
        said = "".join(u.generate_text(24, stop=stop, **GREEDY))
        self.assertEqual((said, u.last_stop_reason), (whole[:whole.index(stop)], StopReason.STOP_TEXT))

    def test_messages_and_forks(self):
        s = self.session()
        s.append_messages([{"role": "user", "content": "Name a sea."}])
        list(s.generate(8, **GREEDY))
        length = s.info().history_length
        s.append_messages([{"role": "user", "content": "Another."}], enable_thinking=False)
        with s.fork(turn=1) as fork, s.fork(at=3) as short:
            self.assertEqual(fork.info().history_length, length)
            self.assertEqual(short.tokens(), s.tokens()[:3])
            self.assertIn(fork.session_id, [i.session_id for i in self.client.list_sessions()])
        self.assertEqual(self.client.session(s.session_id).tokens(), s.tokens())
        text = self.client.detokenize(s.tokens())
        self.assertIn("Name a sea.", text)

    def test_sampling(self):
        hashes = []
        for seed in 1, 1, 2**64 - 1:
            s = self.session(temperature=1.0)
            s.append_text(TEXT)
            list(s.generate(16, seed=seed, ignore_eos=True))
            hashes.append(s.last_result.logits_hash)
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[0], hashes[2])
        s = self.session()
        s.append_text(TEXT)
        only = list(s.generate(3, logit_bias={7: 100}, **GREEDY))
        self.assertEqual(only, [7, 7, 7])
        stopped = list(s.generate(9, logit_bias={7: 100}, stop_token_ids=[7], temperature=0))
        self.assertEqual((stopped, s.last_stop_reason), ([7], StopReason.EOS))

    def test_truncated(self):
        s = self.session(kv_full="window", sink=4, window=64, chunk=64)
        s.append(list(range(100, 356)))
        list(s.generate(2, **GREEDY))
        self.assertEqual(s.last_history_truncated_dropped, 256 - 64 - 4)

    def test_left_early(self):
        """A loop that is left ends the work; the session goes on."""
        s = self.session()
        s.append_text(TEXT)
        with s.generate(4000, **GREEDY) as tokens:
            first = next(tokens)
        self.assertIsInstance(first, int)
        self.assertEqual(s.last_stop_reason, StopReason.CANCELLED)
        length = s.append([5])  # waits until the server has noticed
        self.assertLess(length, 4000)
        self.assertEqual(len(list(s.generate(4, **GREEDY))), 4)

    def test_cancelled_from_another_thread(self):
        s = self.session()
        s.append_text(TEXT)
        tokens = s.generate(4000, **GREEDY)
        next(tokens)
        threading.Timer(0.05, tokens.cancel).start()
        with self.assertRaises(RpcCancelledError):
            for _ in tokens:
                time.sleep(0.002)
        self.assertEqual(s.last_stop_reason, StopReason.CANCELLED)

    def test_refusals(self):
        s = self.session()
        for call, param in ((lambda: s.append([10**6]), "tokens"),
                            (lambda: s.generate(0), "max_tokens"),
                            (lambda: next(s.generate(1)), None),  # no history
                            (lambda: self.client.create_session(kv_format="q3"), "kv_format"),
                            (lambda: s.fork(turn=7), "turn")):
            with self.assertRaises(InvalidArgumentError) as caught:
                call()
            self.assertEqual((caught.exception.status, caught.exception.param), (400, param))
        with self.assertRaises(TypeError):
            s.generate(1, temprature=0)
        with self.assertRaises(SessionNotFoundError):
            self.client.session("sess-none").append([1])
        other = self.client.session(s.session_id)
        s.append_text(TEXT)
        with s.generate(3000, **GREEDY) as tokens:
            next(tokens)
            with self.assertRaises(SessionBusyError):
                other.append([1])

    def test_many_threads(self):
        def work(out, i):
            with self.client.create_session() as s:
                s.append_text(TEXT)
                out[i] = list(s.generate(16, **GREEDY))
        out = [None] * 8
        threads = [threading.Thread(target=work, args=(out, i)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(out[0]), 16)
        self.assertTrue(all(o == out[0] for o in out))

    def test_no_server(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            client = Client(f"127.0.0.1:{s.getsockname()[1]}")
            self.assertFalse(client.ready())
            with self.assertRaises(UnavailableError):
                client.create_session()
            s.listen()
            silent = Client(f"127.0.0.1:{s.getsockname()[1]}", timeout=0.1)
            with self.assertRaises(DeadlineExceededError):
                silent.create_session()
        self.client.close()
        self.client.close()
        with self.assertRaises(SessionClosedError):
            self.client.create_session()

    def test_connections_are_used_again(self):
        s = self.session()
        before = list(self.client._transport._idle)
        self.assertEqual(len(before), 1)
        s.append_text(TEXT)
        list(s.generate(4, **GREEDY))
        with self.assertRaises(InvalidArgumentError):
            s.append([10**6])
        self.assertEqual(self.client._transport._idle, before)


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = AsyncClient(server.address, timeout=60)
        self.addAsyncCleanup(self.client.close)

    async def test_surface(self):
        async with await self.client.create_session(client_label="me") as s:
            ids = await self.client.tokenize(TEXT)
            self.assertEqual(await s.append(ids), len(ids))
            made = [t async for t in s.generate(12, **GREEDY)]
            self.assertEqual((len(made), s.last_stop_reason), (12, StopReason.MAX_TOKENS))
            self.assertEqual(await s.tokens(), ids + made)
            async with await s.fork(at=len(ids)) as fork:
                text = "".join([t async for t in fork.generate_text(12, **GREEDY)])
                self.assertEqual(fork.last_result.logits_hash, s.last_result.logits_hash)
                self.assertEqual(text, await self.client.detokenize(made))
            self.assertEqual((await s.info()).client_label, "me")
            self.assertTrue(await self.client.ready())
            self.assertIn(s.session_id, [i.session_id for i in await self.client.list_sessions()])
            self.assertEqual((await s.close(), await s.close()), (len(ids) + 12, 0))
            with self.assertRaises(SessionClosedError):
                await s.append([1])
            with self.assertRaises(SessionNotFoundError):
                await s.info()

    async def test_cancelled_task(self):
        """A task that is cancelled ends its work on the server; the session goes on."""
        async with await self.client.create_session() as s:
            await s.append_text(TEXT)
            came = asyncio.Event()

            async def run():
                async for _ in s.generate(4000, **GREEDY):
                    came.set()
                    await asyncio.sleep(0.001)
            task = asyncio.create_task(run())
            await came.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            async with s.generate(4000, **GREEDY) as tokens:  # the first one was left
                await tokens.__anext__()
            self.assertEqual(s.last_stop_reason, StopReason.CANCELLED)
            self.assertLess(await s.append([5]), 4000)

    async def test_refusals(self):
        async with await self.client.create_session() as s:
            with self.assertRaises(InvalidArgumentError):
                async for _ in s.generate(1):
                    pass
            with self.assertRaises(TypeError):
                s.generate(1, temprature=0)
        with self.assertRaises(UnavailableError):
            await AsyncClient("127.0.0.1:1").create_session()

    async def test_64_sessions(self):
        """64 sessions of one process at the same time, each with the tokens it would get alone."""
        prompts = [f"def f{i}(x):" for i in range(64)]

        async def run(prompt):
            async with await self.client.create_session() as s:
                await s.append_text(prompt)
                return [t async for t in s.generate(32, **GREEDY)]
        alone = [await run(p) for p in prompts[:4]]
        start = time.monotonic()
        streams = await asyncio.gather(*map(run, prompts))
        took = time.monotonic() - start
        self.assertEqual(streams[:4], alone)
        self.assertEqual({len(s) for s in streams}, {32})
        self.assertLess(took, 60)

    async def test_too_many_sessions(self):
        async with contextlib.AsyncExitStack() as held:
            with self.assertRaises(ResourceExhaustedError) as caught:
                for _ in range(100):
                    await held.enter_async_context(await self.client.create_session())
            self.assertEqual(caught.exception.code, "too_many_sessions")
            self.assertIsNotNone(caught.exception.retry_after)


class OneAnswer:
    """A server that answers every connection once, says that it may be kept, and closes it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    connection.recv(65536)
                    body = b'{"tokens": [1]}'
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" %
                                       (len(body), body))

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)


class Connections(unittest.IsolatedAsyncioTestCase):
    async def test_closed_while_idle(self):
        """A connection that the server has closed is not used again."""
        once = OneAnswer()
        self.addCleanup(once.stop)
        with Client(once.address) as client:
            for _ in range(3):
                self.assertEqual(client.tokenize("x"), [1])
                time.sleep(0.05)
        async with AsyncClient(once.address) as client:
            for _ in range(3):
                self.assertEqual(await client.tokenize("x"), [1])
                await asyncio.sleep(0.05)

    async def test_silence(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
            with self.assertRaises(DeadlineExceededError):
                await asyncio.wait_for(client.tokenize("x"), 30)

    async def test_slow_reader(self):
        """What is not taken is not read from the network either, and nothing of it is lost."""
        from kakeya import _streams
        self.addCleanup(setattr, _streams, "HIGH", _streams.HIGH)
        _streams.HIGH = 500
        async with AsyncClient(server.address) as client, await client.create_session() as s:
            await s.append_text(TEXT)
            pieces, paused = s.generate(400, **GREEDY), 0
            tokens = []
            async for token in pieces:
                tokens.append(token)
                await asyncio.sleep(0.0005)
                paused += pieces._stream._link._paused
            self.assertEqual((len(tokens), s.last_stop_reason), (400, StopReason.MAX_TOKENS))
            self.assertEqual((await s.tokens())[-400:], tokens)
            self.assertGreater(paused, 0)


class Secured(unittest.TestCase):
    """Keys and TLS, with a certificate made here."""

    def test_keys_and_tls(self):
        import shutil
        import ssl
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a certificate with")
        with tempfile.TemporaryDirectory() as folder:
            cert, key, keys = (os.path.join(folder, n) for n in ("cert.pem", "key.pem", "keys"))
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                            "-days", "2"], check=True, capture_output=True)
            with open(keys, "w", encoding="ascii") as f:
                f.write("secret\n")
            os.chmod(keys, 0o600)
            own = Server("--tls-cert", cert, "--tls-key", key, "--api-key-file", keys)
            self.addCleanup(own.stop)
            address = f"https://localhost:{own.port}"
            tls = ssl.create_default_context(cafile=cert)
            with Client(address, api_key="secret", tls=tls) as client, client.create_session() as s:
                s.append_text(TEXT)
                self.assertEqual(len(list(s.generate(4, **GREEDY))), 4)
                tokens = s.generate(3000, **GREEDY)
                next(tokens)
                tokens.close()
            with Client(address, api_key="wrong", tls=tls) as client:
                self.assertRaises(UnauthenticatedError, client.create_session)
            with Client(address, api_key="secret") as client:
                self.assertRaises(UnavailableError, client.create_session)
            with self.assertRaises(InvalidArgumentError):
                Client(address, api_key="a\r\nb")

            async def run():
                async with AsyncClient(address, api_key="secret", tls=tls) as client:
                    async with await client.create_session() as s:
                        await s.append_text(TEXT)
                        return [t async for t in s.generate(4, **GREEDY)]
            self.assertEqual(len(asyncio.run(run())), 4)


class Version(unittest.TestCase):
    def test_is_that_of_the_header(self):
        from support import ROOT
        with open(os.path.join(ROOT, "include", "kakeya.h"), encoding="utf-8") as f:
            self.assertIn(f'#define KK_VERSION "{kakeya.__version__}"', f.read())


if __name__ == "__main__":
    unittest.main()
