"""terminal_chat.py KAKEYA MODEL WORK - `kakeya chat` as somebody at a terminal meets it."""
import os
import stat
import sys

from terminal import Terminal, check

KAKEYA, MODEL, WORK = sys.argv[1:4]
HISTORY = os.path.join(os.environ["XDG_STATE_HOME"], "kakeya", "history")
PASTE, PASTED = "\033[200~", "\033[201~"


def chat(*args, env=None):
    return Terminal([KAKEYA, "chat", "-m", MODEL, "-n", "8", "-s", "3", *args], env)


def history():
    with open(HISTORY, encoding="utf-8") as f:
        return f.read()


def conversation(name):
    with open(os.path.join(WORK, name + ".chat.json"), encoding="utf-8") as f:
        return f.read()


def test_first_chat():
    t = chat("-v")
    t.ready()
    check("model (bf16), context of" in t.plain(), f"no model in the greeting: {t.screen!r}")
    check("/help shows the commands" in t.plain(), "no word about /help")
    check("seed 3" in t.plain(), "-v does not show the seed")
    check("\033[2m" in t.screen and "\033[1m" in t.screen, "no colours at a terminal")
    check("\033[?2004h" in t.screen, "the terminal is not asked to mark what is pasted")
    t.send("Hello\n")
    t.wait("tok/s")
    t.ready()
    t.send("half a line")
    t.wait("half a line")
    t.send("\003")
    t.wait("(/bye or Ctrl-D leaves)")
    t.ready()
    t.send("/help\n")
    t.wait("What is pasted is one message")
    t.ready()
    t.send("/bye\n")
    t.ends()
    check(t.screen.endswith("\033[?2004l"), "the terminal still marks what is pasted")
    check("Hello" in history(), "no history was kept")
    check("half" not in history(), "a dropped line was sent")
    check(stat.S_IMODE(os.stat(HISTORY).st_mode) == 0o600, "others may read the history")


def test_pasting():
    t = chat("-v")
    t.ready()
    t.send(PASTE + 'def f(x):\n\treturn x \\\n"""end\n' + PASTED)
    t.wait('"""end')
    t.settle()
    check("tok/s" not in t.plain(), "a line break in what is pasted sent the message")
    t.send(" and more\n")
    t.wait("tok/s")
    t.ready()
    t.send(f"/save {WORK}/pasted.kks\n")
    t.wait("saved")
    t.ready()
    text = conversation("pasted")
    check(text.count('"role": "user"') == 1, f"not one message: {text}")
    check('def f(x):\\n\\treturn x \\\\\\n\\"\\"\\"end and more"' in text, f"not as pasted: {text}")
    # It comes back from the history whole, and is one message again.
    t.send("/clear\n")
    t.wait("a new conversation")
    t.ready()
    t.send("\020\020\020")
    t.wait("end and more")
    t.settle()
    t.send("\n")
    t.wait("tok/s")
    t.ready()
    t.send(f"/save {WORK}/again.kks\n")
    t.wait("saved")
    t.ready()
    t.send("\004")
    t.ends()
    check(conversation("again") .split('"role": "assistant"')[0] ==
          text.split('"role": "assistant"')[0], f"the history has it otherwise: {conversation('again')}")


def test_lines():
    """Lines joined by a backslash are one entry of the history too."""
    t = chat("-v")
    t.ready()
    t.send("one\\\n")
    t.wait(".")
    t.settle()
    t.send("two\n")
    t.wait("tok/s")
    t.ready()
    t.send("\020")
    t.wait("one")
    t.wait("two")
    t.settle()
    t.send("\025/bye\n")
    t.ends()
    check("one\\012two" in history(), f"not one entry: {history()}")


def test_completion():
    t = chat()
    t.ready()
    t.send("/sa\t")
    t.wait("ve ")
    t.settle()
    t.send("abc\n")
    t.wait("saved: /load abc")
    t.ready()
    t.send("/load a\t")
    t.wait("bc")
    t.settle()
    t.send("\n")
    t.wait("abc: 0 messages")
    t.ready()
    t.send("/s\t")
    t.wait("/system  /set  /save")
    t.settle()
    t.send("\025/set top\t")
    t.wait("-")
    t.settle()
    t.send("k 5\n")
    t.wait("top-k 5")
    t.ready()
    open(os.path.join(WORK, "notes for tab"), "w", encoding="utf-8").close()
    t.send(f"/file {WORK}/notes\t")
    t.wait("for tab")
    t.settle()
    t.send("\n")
    t.wait("goes before your next message")
    t.ready()
    # What does not go on from the line is no candidate.
    for path in (f"{WORK}/*s for tab", "~/"):
        t.send(f"/file {path}\t")
        t.settle()
        t.send("|\n")
        t.wait(f"cannot read '{path}|'")
        t.ready()
    t.send("\004")
    t.ends()


def test_opening():
    t = chat("-p", "Hello there", "-v")
    t.wait("> Hello there")
    t.wait("tok/s")
    t.ready()
    t.send("\004")
    t.ends()


def test_no_colour():
    t = chat("-q", "-v", env={"NO_COLOR": "1"})
    t.ready()
    t.send("Hello\n")
    t.wait("tok/s")
    t.ready()
    t.send("\004")
    t.ends()
    check("\033[1m" not in t.screen and "\033[2m" not in t.screen and "\033[3" not in t.screen,
          f"colours in spite of NO_COLOR: {t.screen!r}")


def test_tool_result():
    with open(os.path.join(WORK, "call.chat.json"), "w", encoding="utf-8") as f:
        f.write('{"kakeya_chat": 1, "messages": [{"role": "user", "content": "Oslo?"}, {"role": '
                '"assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": '
                '"weather", "arguments": {}}}]}]}')
    t = chat("--load", WORK + "/call.kks")
    t.wait("result of weather>")
    t.ready()
    t.send("\004")
    t.ends()


for name, test in sorted(globals().items()):
    if name.startswith("test_"):
        test()
