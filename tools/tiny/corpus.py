"""Source code that may be trained on: Python files of this installation, by package and licence.

A package counts when its own metadata names a permissive licence (PSF, BSD, MIT, Apache-2.0 and the
like) and nothing else.  Folders of vendored code are left out, because their licence is another's.
Files are held out by a hash of their path; four packages are held out whole.
"""
import hashlib
import os
import re
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

HELD_PACKAGES = ("gpytorch", "botorch", "torchmetrics", "numpyro")
HELD_ONE_IN = 40
PERMISSIVE = re.compile(r"\b(PSF|Python Software Foundation|BSD|0BSD|MIT|ISC|Apache)", re.I)
REFUSED = re.compile(r"GPL|MPL|Mozilla|EPL|proprietary|NVIDIA|EULA|Commons|Commercial|Other", re.I)
SKIPPED = re.compile(r"(^|/)(_?vendor(ed)?|third_party|externals?|_external|__pycache__)(/|$)")


def path_hash(text):
    return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)


def licence_of(dist):
    """The licence a package names for itself, or "" where it names none in a few words."""
    meta = dist.metadata
    named = meta.get("License-Expression") or ""
    if not named:
        kinds = [c.split("::")[-1].strip() for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
        named = ", ".join(k for k in kinds if k != "OSI Approved")
    if not named:
        lines = (meta.get("License") or "").strip().splitlines()
        named = lines[0].strip() if lines and len(lines[0]) < 60 else ""
    return named


def list_stdlib():
    root = sysconfig.get_paths()["stdlib"]
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(d for d in folders if d not in ("site-packages", "dist-packages", "__pycache__",
                                                            "idlelib", "lib2to3"))
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                yield "python-stdlib", os.path.join("stdlib", os.path.relpath(path, root)), path


def list_packages():
    """(package, path within the installation, path) of every file, and each package's licence."""
    found, licences = [], {"python-stdlib": ("%d.%d.%d" % sys.version_info[:3], "PSF-2.0")}
    found.extend(list_stdlib())
    for dist in sorted(metadata.distributions(), key=lambda d: (d.metadata["Name"] or "").lower()):
        name, named = dist.metadata["Name"], licence_of(dist)
        if not name or name in licences or not PERMISSIVE.search(named) or REFUSED.search(named):
            continue
        licences[name] = (dist.version, named)
        for f in dist.files or []:
            if f.suffix == ".py" and ".." not in f.parts and not SKIPPED.search(str(f)):
                found.append((name, str(f), str(dist.locate_file(f))))
    return found, licences


def read(path):
    try:
        if not 800 <= os.path.getsize(path) <= 200000:
            return ""
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError):
        return ""


def load(max_bytes):
    """Texts by split, and a table of packages; the same bytes are taken once."""
    listed, licences = list_packages()
    listed.sort(key=lambda f: path_hash(f[1]))
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda f: read(f[2]), listed))
    split = {"train": [], "held_files": [], "held_packages": []}
    table, seen, total = {}, set(), 0
    for (package, name, _), text in zip(listed, texts):
        digest = hashlib.md5(text.encode("utf-8", "replace")).digest()
        if len(text) < 800 or digest in seen or text.count("\n") * 400 < len(text):
            continue
        seen.add(digest)
        if package.lower() in HELD_PACKAGES:
            split["held_packages"].append((name, text))
            continue
        held = path_hash("held:" + name) % HELD_ONE_IN == 0
        if not held and total + len(text) > max_bytes:
            continue
        total += 0 if held else len(text)
        split["held_files" if held else "train"].append((name, text))
        row = table.setdefault(package, {"package": package, "version": licences[package][0],
                                         "licence": licences[package][1], "files": 0, "bytes": 0})
        row["files"] += 1
        row["bytes"] += len(text.encode())
    for package in HELD_PACKAGES:
        if package in licences:
            rows = [t for n, t in split["held_packages"] if n.split("/")[0] == package]
            table[package] = {"package": package, "version": licences[package][0], "licence": licences[package][1],
                              "files": len(rows), "bytes": sum(map(len, rows)), "held_out": True}
    return split, sorted(table.values(), key=lambda r: -r["bytes"])


if __name__ == "__main__":
    parts, packages = load(1e9)
    print({k: (len(v), sum(len(t) for _, t in v)) for k, v in parts.items()})
    for row in packages[:40]:
        print(row)
