#!/usr/bin/env python3
"""Converts a projection of the Python prototype into a folder that Kakeya reads.

usage: convert_projection.py --verifier FOLDER [--force] FROM TO

FROM holds f_theta_config.json and f_theta_weights.pt (keys encoder_k.weight, encoder_v.weight,
decoders_k.N.weight, decoders_v.N.weight); TO gets projection.json and projection.safetensors, with
source drafter-kv and separate encoders.  Values keep the type they are stored in; float64 becomes
float32.  The verifier's config.json says what the prototype's does not: its hidden size and which
layers have K = V.

A .pt file is a zip with a pickle in it, and a pickle is a program.  Only what a state dict of plain
tensors needs is understood here, everything else is refused by name; torch is not needed.
"""
import argparse
import array
import io
import json
import os
import pickle
import struct
import sys
import tempfile
import zipfile

MAX_PICKLE = 16 << 20
MAX_RANK, MAX_LAYERS, MAX_INPUTS, MAX_HEADS, MAX_DRAFT_LAYERS = 8192, 256, 1 << 20, 1024, 64
CHUNK = 1 << 20


class Refused(Exception):
    """What is wrong with the input, as one sentence."""


# ---- JSON ----------------------------------------------------------------------------------------


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except OSError as why:
        raise Refused(f"cannot read '{path}': {why.strerror}") from None
    except ValueError as why:
        raise Refused(f"'{path}' is no JSON: {why}") from None
    if not isinstance(value, dict):
        raise Refused(f"'{path}' is no JSON object")
    return value


def whole(label, key, value, low, high):
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{label}: {key} is {value!r}, not an integer")
    if not low <= value <= high:
        raise Refused(f"{label}: {key} is {value}, outside {low}..{high}")
    return value


class Theta:
    """f_theta_config.json, checked; heads and dims are lists with an entry for each layer."""

    REQUIRED = ("drafter_num_layers", "drafter_num_kv_heads", "drafter_head_dim",
                "verifier_num_layers", "verifier_num_kv_heads", "verifier_head_dim")
    OPTIONAL = ("rank", "verifier_layer_kv_heads", "verifier_layer_head_dims")
    LABEL = "f_theta_config.json"

    def __init__(self, fields):
        for key in fields:
            if key not in self.REQUIRED + self.OPTIONAL:
                raise Refused(f"{self.LABEL}: unknown field '{key}'")
        for key in self.REQUIRED:
            if key not in fields:
                raise Refused(f"{self.LABEL}: {key} is missing")
        number = lambda key, low, high: whole(self.LABEL, key, fields[key], low, high)
        self.rank = whole(self.LABEL, "rank", fields.get("rank", 256), 1, MAX_RANK)
        self.draft_layers = number("drafter_num_layers", 1, MAX_DRAFT_LAYERS)
        self.draft_heads = number("drafter_num_kv_heads", 1, MAX_HEADS)
        self.draft_dim = number("drafter_head_dim", 2, 512)
        self.layers = number("verifier_num_layers", 1, MAX_LAYERS)
        self.heads = self.each(fields, "verifier_layer_kv_heads",
                               number("verifier_num_kv_heads", 1, MAX_HEADS), 1, MAX_HEADS)
        self.dims = self.each(fields, "verifier_layer_head_dims",
                              number("verifier_head_dim", 2, 512), 2, 512)
        self.inputs = self.draft_layers * self.draft_heads * self.draft_dim
        whole(self.LABEL, "drafter layers * kv heads * head_dim", self.inputs, 1, MAX_INPUTS)

    def each(self, fields, key, common, low, high):
        """A list with an entry for each layer; null or absent: all layers are alike."""
        values = fields.get(key)
        if values is None:
            return [common] * self.layers
        if not isinstance(values, list) or len(values) != self.layers:
            count = len(values) if isinstance(values, list) else "no list of"
            raise Refused(f"{self.LABEL}: {key} has {count} entries for {self.layers} layers")
        return [whole(self.LABEL, f"{key}[{i}]", v, low, high) for i, v in enumerate(values)]

    def shapes(self):
        """(key in the .pt, our name, shape) of every tensor, in the order they are written."""
        for side in "kv":
            yield f"encoder_{side}.weight", f"encoder_{side}.weight", [self.rank, self.inputs]
        for i in range(self.layers):
            for side in "kv":
                width = self.heads[i] * self.dims[i]
                yield f"decoders_{side}.{i}.weight", f"layers.{i}.{side}.weight", [width, self.rank]


def read_verifier(path, layers):
    """(hidden size, whether K = V for each layer) of a verifier's config.json."""
    label, root = "the verifier's config.json", read_json(os.path.join(path, "config.json"))
    text = root.get("text_config", root)
    if not isinstance(text, dict):
        raise Refused(f"{label}: text_config is no object")
    hidden = whole(label, "hidden_size", text.get("hidden_size"), 1, 1 << 16)
    types = text.get("layer_types")
    if types is None:
        have = whole(label, "num_hidden_layers", text.get("num_hidden_layers"), 1, MAX_LAYERS)
        types = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(have)]
    if not isinstance(types, list) or len(types) != layers:
        count = len(types) if isinstance(types, list) else "no"
        raise Refused(f"{Theta.LABEL} is for {layers} layers, the verifier has {count}")
    if text.get("num_kv_shared_layers"):
        raise Refused(f"{label}: {text['num_kv_shared_layers']} layers read another's K/V, which "
                      "the prototype never did")
    full = [kind == "full_attention" for kind in types]
    full[-1] = True  # as in the reference implementation, whatever the list says
    return hidden, [bool(text.get("attention_k_eq_v")) and f for f in full]


# ---- .pt -----------------------------------------------------------------------------------------

# The storage classes of torch: their dtype in safetensors, and bytes of a value.
STORAGES = {"FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2),
            "DoubleStorage": ("F64", 8)}


class Opaque:
    """What the pickle may name and not change: it has no state to be set."""
    __slots__ = ()

    def __setstate__(self, state):
        raise pickle.UnpicklingError(f"a {type(self).__name__} is given a state")


class StorageType(Opaque):
    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name


class Storage(Opaque):
    """A run of values in the zip."""
    __slots__ = ("kind", "key", "count")

    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count


class Tensor(Opaque):
    __slots__ = ("storage", "offset", "shape")

    def __init__(self, storage, offset, shape):
        self.storage, self.offset, self.shape = storage, offset, shape


class StateDict(dict):
    """Stands for OrderedDict; its attributes, the versions of modules, are left out."""
    __slots__ = ()

    def __setstate__(self, state):
        pass


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class RebuildTensor(Opaque):
    __slots__ = ()

    def __call__(self, storage, offset, shape, stride, *unused):
        if not isinstance(storage, Storage) or not is_count(offset):
            raise pickle.UnpicklingError("a tensor has no plain storage")
        for dims in (shape, stride):
            if not isinstance(dims, tuple) or not all(is_count(n) for n in dims):
                raise pickle.UnpicklingError(f"a tensor has the shape or strides {dims!r}")
        if len(shape) != len(stride):
            raise pickle.UnpicklingError(f"a tensor has {len(shape)} dims and {len(stride)} "
                                         "strides")
        step = 1
        for n, jump in zip(reversed(shape), reversed(stride)):
            if n > 1 and jump != step:
                raise pickle.UnpicklingError(f"a tensor of shape {list(shape)} has strides "
                                             f"{list(stride)}: save it contiguous")
            step *= n
        if offset + step > storage.count:
            raise pickle.UnpicklingError(f"a tensor of {step} values at {offset} does not fit its "
                                         f"storage of {storage.count}")
        return Tensor(storage, offset, list(shape))


class RebuildParameter(Opaque):
    __slots__ = ()

    def __call__(self, data, *unused):
        if not isinstance(data, Tensor):
            raise pickle.UnpicklingError("a parameter is no tensor")
        return data


class Reader(pickle.Unpickler):
    """Understands a state dict of plain tensors and nothing else."""
    KNOWN = {("collections", "OrderedDict"): StateDict,
             ("torch._utils", "_rebuild_tensor_v2"): RebuildTensor(),
             ("torch._utils", "_rebuild_parameter"): RebuildParameter()}

    def find_class(self, module, name):
        if module == "torch" and name in STORAGES:
            return StorageType(name)
        if (module, name) in self.KNOWN:
            return self.KNOWN[module, name]
        raise pickle.UnpicklingError(f"it needs {module}.{name}, which no tensor does")

    def persistent_load(self, pid):
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise pickle.UnpicklingError(f"it refers to {pid!r}, which is no storage")
        _, kind, key, _, count = pid
        if not isinstance(kind, StorageType) or not isinstance(key, str) or not is_count(count):
            raise pickle.UnpicklingError(f"it refers to {pid!r}, which holds no plain values")
        return Storage(kind.name, key, count)


class Weights:
    """A .pt file: its tensors by name, and their bytes on demand."""

    def __init__(self, path):
        self.label = os.path.basename(path)
        try:
            self.zip = zipfile.ZipFile(path)
        except OSError as why:
            raise Refused(f"cannot read '{path}': {why.strerror or why}") from None
        except zipfile.BadZipFile:
            raise Refused(f"'{path}' is no zip: it is cut short, or from a torch before 1.6 (load "
                          "it there and save it again)") from None
        names = [n for n in self.zip.namelist() if n.endswith("/data.pkl")]
        if len(names) != 1:
            raise Refused(f"{self.label} has no data.pkl: torch did not save it")
        self.root = names[0][:-len("data.pkl")]
        if self.root + "byteorder" in self.zip.namelist():
            order = self.read("byteorder", 64).decode("ascii", "replace")
            if order != "little":
                raise Refused(f"{self.label} has byte order '{order}', not little")
        self.tensors = self.unpickle()

    def member(self, name):
        try:
            info = self.zip.getinfo(self.root + name)
        except KeyError:
            raise Refused(f"{self.label} has no '{name}'") from None
        if info.compress_type != zipfile.ZIP_STORED:
            raise Refused(f"{self.label}: '{name}' is compressed, which torch never does")
        return info

    def read(self, name, limit):
        info = self.member(name)
        if info.file_size > limit:
            raise Refused(f"{self.label}: '{name}' has {info.file_size} bytes, more than {limit}")
        try:
            return self.zip.read(info)
        except (zipfile.BadZipFile, OSError, EOFError) as why:
            raise Refused(f"{self.label}: cannot read '{name}': {why}") from None

    def unpickle(self):
        data = self.read("data.pkl", MAX_PICKLE)
        try:
            value = Reader(io.BytesIO(data)).load()
        except pickle.UnpicklingError as why:
            raise Refused(f"{self.label} is no state dict of plain tensors: {why}") from None
        except Exception as why:  # a broken pickle may raise anything
            kind = type(why).__name__
            raise Refused(f"{self.label}: its pickle is broken: {kind}: {why}") from None
        if not isinstance(value, dict):
            raise Refused(f"{self.label} holds no state dict")
        for key, tensor in value.items():
            if not isinstance(key, str) or not isinstance(tensor, Tensor):
                raise Refused(f"{self.label}: {key!r} is no tensor")
        return value

    def bytes_of(self, tensor):
        """The tensor's bytes, in chunks of whole values."""
        _, size = STORAGES[tensor.storage.kind]
        info, left = self.member("data/" + tensor.storage.key), size
        if info.file_size != tensor.storage.count * size:
            raise Refused(f"{self.label}: storage '{tensor.storage.key}' has {info.file_size} "
                          f"bytes, not those of {tensor.storage.count} values")
        for n in tensor.shape:
            left *= n
        try:
            with self.zip.open(info) as file:
                file.seek(tensor.offset * size)
                while left:
                    chunk = file.read(min(CHUNK, left))
                    if not chunk:
                        raise EOFError("it ends early")
                    left -= len(chunk)
                    yield chunk
        except (zipfile.BadZipFile, OSError, EOFError) as why:
            key = tensor.storage.key
            raise Refused(f"{self.label}: cannot read storage '{key}': {why}") from None


# ---- our folder ----------------------------------------------------------------------------------


def pick(weights, theta):
    """(name, dtype, tensor) of every tensor that the configuration calls for, and no other."""
    found, wanted = weights.tensors, list(theta.shapes())
    for key, _, shape in wanted:
        if key not in found:
            raise Refused(f"{weights.label} has no '{key}'")
        if found[key].shape != shape:
            raise Refused(f"{weights.label}: '{key}' has shape {found[key].shape}, "
                          f"{Theta.LABEL} needs {shape}")
    unknown = sorted(set(found) - {key for key, _, _ in wanted})
    if unknown:
        raise Refused(f"{weights.label} has '{unknown[0]}', which no projection has")
    for key, name, _ in wanted:
        dtype = STORAGES[found[key].storage.kind][0]
        yield name, "F32" if dtype == "F64" else dtype, found[key]


def narrowed(chunks):
    """float64 as float32."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        use = len(rest) // 8 * 8
        yield array.array("f", array.array("d", rest[:use])).tobytes()
        rest = rest[use:]


def safetensors_chunks(weights, tensors):
    header, at = {}, 0
    width = {"F32": 4, "F16": 2, "BF16": 2}
    tensors = sorted(tensors, key=lambda t: -width[t[1]])  # wide types first: all are aligned
    for name, dtype, tensor in tensors:
        size = width[dtype]
        for n in tensor.shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, _, tensor in tensors:
        chunks = weights.bytes_of(tensor)
        yield from narrowed(chunks) if tensor.storage.kind == "DoubleStorage" else chunks


def config_text(theta, hidden, k_eq_v):
    layers = [{"layer": i, "kv_heads": theta.heads[i], "head_dim": theta.dims[i],
               "k_eq_v": k_eq_v[i]} for i in range(theta.layers)]
    fields = {"format": "kakeya-projection", "version": 1, "source": "drafter-kv",
              "drafter_layers": theta.draft_layers, "drafter_kv_heads": theta.draft_heads,
              "drafter_head_dim": theta.draft_dim, "inputs": theta.inputs, "rank": theta.rank,
              "encoders": "separate", "hidden": hidden, "verifier_layers": theta.layers}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
    rows = ",\n".join(f"    {json.dumps(layer)}" for layer in layers)
    return "{\n" + ",\n".join(lines) + ',\n  "layers": [\n' + rows + "\n  ]\n}\n"


def write_whole(path, chunks):
    """The file appears whole or not at all."""
    fd, temp = tempfile.mkstemp(dir=os.path.dirname(path), prefix=os.path.basename(path) + ".")
    try:
        with os.fdopen(fd, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temp, 0o644)
        os.replace(temp, path)
    except BaseException:
        os.unlink(temp)
        raise


def convert(source, target, verifier, force=False):
    if not os.path.isdir(source):
        raise Refused(f"'{source}' is no folder")
    for name in ("projection.json", "projection.safetensors"):
        if not force and os.path.lexists(os.path.join(target, name)):
            raise Refused(f"'{os.path.join(target, name)}' exists: --force replaces it")
    theta = Theta(read_json(os.path.join(source, "f_theta_config.json")))
    hidden, k_eq_v = read_verifier(verifier, theta.layers)
    weights = Weights(os.path.join(source, "f_theta_weights.pt"))
    tensors = list(pick(weights, theta))
    os.makedirs(target, exist_ok=True)
    text = config_text(theta, hidden, k_eq_v).encode()
    chunks = safetensors_chunks(weights, tensors)
    write_whole(os.path.join(target, "projection.safetensors"), chunks)
    write_whole(os.path.join(target, "projection.json"), [text])
    return sum(t.shape[0] * t.shape[1] for _, _, t in tensors)


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    flags.add_argument("source", metavar="FROM", help="folder of the prototype")
    flags.add_argument("target", metavar="TO", help="folder to write")
    flags.add_argument("--verifier", required=True, metavar="FOLDER",
                       help="the model it was made for")
    flags.add_argument("--force", action="store_true", help="replace a projection that is there")
    args = flags.parse_args()
    try:
        count = convert(args.source, args.target, args.verifier, args.force)
    except Refused as why:
        sys.exit(f"convert_projection: {why}")
    except OSError as why:
        sys.exit(f"convert_projection: cannot write '{args.target}': {why.strerror or why}")
    print(f"{args.target}: {count} parameters")


if __name__ == "__main__":
    main()
