"""convert_projection_test.py - the converter of the prototype's projections, on .pt files made here
as torch makes them: what it writes byte for byte (tests/unit/projection_test.c reads the same
files), and what it must refuse.

usage: convert_projection_test.py [--write FOLDER]   (writes the files that the test compares with)
"""
import collections
import importlib.util
import io
import json
import os
import pickle
import struct
import sys
import tempfile
import types
import unittest
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXPECTED = os.path.join(ROOT, "tests", "data", "projection", "converted")
SPEC = importlib.util.spec_from_file_location(
    "convert_projection", os.path.join(ROOT, "tools", "convert_projection.py"))
sys.dont_write_bytecode = True
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)

# ---- .pt files as torch writes them --------------------------------------------------------------

torch, torch_utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules.update({"torch": torch, "torch._utils": torch_utils})


def named(module, name):
    """A class the pickle refers to as module.name."""
    kind = type(name, (), {"__module__": module.__name__, "__qualname__": name})
    setattr(module, name, kind)
    return kind


KINDS = {name: named(torch, name) for name in
         ("FloatStorage", "HalfStorage", "BFloat16Storage", "DoubleStorage", "IntStorage")}
CODES = {"FloatStorage": "f", "DoubleStorage": "d", "IntStorage": "i"}


def _rebuild_tensor_v2():
    """Never called here: the pickle names it."""


def _rebuild_parameter():
    """The same."""


for function in (_rebuild_tensor_v2, _rebuild_parameter):
    function.__module__ = "torch._utils"
    setattr(torch_utils, function.__name__, function)


class Storage:
    def __init__(self, kind, data, count):
        self.kind, self.data, self.count, self.key = kind, data, count, None


class FakeTensor:
    def __init__(self, values, shape, kind="FloatStorage", offset=0, stride=None, count=None):
        if isinstance(values, bytes):
            data = values
        else:
            data = struct.pack(f"<{len(values)}{CODES[kind]}", *values)
        size = {"f": 4, "d": 8, "i": 4}.get(CODES.get(kind), 2)
        count = len(data) // size if count is None else count
        self.storage = Storage(kind, data, count)
        self.offset, self.shape = offset, shape
        self.stride = stride if stride is not None else (shape[1], 1)

    def __reduce__(self):
        return _rebuild_tensor_v2, (self.storage, self.offset, tuple(self.shape), self.stride,
                                    False, collections.OrderedDict())


class FakeParameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return _rebuild_parameter, (self.tensor, True, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def __init__(self, file, storages):
        super().__init__(file, 2)
        self.storages = storages

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        obj.key = str(len(self.storages))
        self.storages.append(obj)
        return "storage", KINDS[obj.kind], obj.key, "cpu", obj.count


def save(path, value, compress=zipfile.ZIP_STORED, order=b"little", data=None):
    storages, stream = [], io.BytesIO()
    Pickler(stream, storages).dump(value)
    with zipfile.ZipFile(path, "w", compress) as file:
        file.writestr("archive/data.pkl", stream.getvalue() if data is None else data)
        file.writestr("archive/byteorder", order)
        for s in storages:
            file.writestr(f"archive/data/{s.key}", s.data)
        file.writestr("archive/version", "3\n")


# ---- a small projection --------------------------------------------------------------------------

CONFIG = {"drafter_num_layers": 2, "drafter_num_kv_heads": 2, "drafter_head_dim": 4,
          "verifier_num_layers": 3, "verifier_num_kv_heads": 4, "verifier_head_dim": 8, "rank": 16,
          "verifier_layer_kv_heads": None, "verifier_layer_head_dims": None}
VERIFIER = {"text_config": {"hidden_size": 64, "num_hidden_layers": 3, "attention_k_eq_v": True,
                            "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}}


def values(seed, count):
    """Values that 16 bits hold, others for every tensor."""
    return [((i * 7 + seed * 13) % 251 - 125) / 64 for i in range(count)]


def tensors(widths=(32, 32, 32), rank=16, inputs=16):
    shapes = {f"encoder_{side}.weight": (rank, inputs) for side in "kv"}
    for side in "kv":
        for i, width in enumerate(widths):
            shapes[f"decoders_{side}.{i}.weight"] = (width, rank)
    state = collections.OrderedDict()
    for seed, (key, shape) in enumerate(shapes.items()):
        state[key] = FakeTensor(values(seed, shape[0] * shape[1]), shape)
    state._metadata = collections.OrderedDict([("", {"version": 1})])  # as nn.Module leaves it
    return state


class Converter(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.source, self.verifier, self.target = (
            os.path.join(self.place.name, n) for n in ("from", "verifier", "to"))
        os.mkdir(self.source)
        os.mkdir(self.verifier)
        self.put(self.source, "f_theta_config.json", CONFIG)
        self.put(self.verifier, "config.json", VERIFIER)
        self.weights = os.path.join(self.source, "f_theta_weights.pt")
        save(self.weights, tensors())

    def put(self, folder, name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(value if isinstance(value, str) else json.dumps(value))

    def convert(self):
        return tool.convert(self.source, self.target, self.verifier)

    def refused(self, says):
        with self.assertRaises(tool.Refused) as caught:
            self.convert()
        self.assertIn(says, str(caught.exception))
        self.assertFalse(os.path.exists(os.path.join(self.target, "projection.json")))

    def written(self):
        """(config, header, data) of what was written."""
        with open(os.path.join(self.target, "projection.json"), encoding="utf-8") as file:
            config = json.load(file)
        with open(os.path.join(self.target, "projection.safetensors"), "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            return config, json.loads(file.read(size)), file.read()

    def tensor(self, name, code="f"):
        _, header, data = self.written()
        begin, end = header[name]["data_offsets"]
        return [v for v, in struct.iter_unpack("<" + code, data[begin:end])]

    def test_every_byte_is_as_expected(self):
        self.assertEqual(self.convert(), 3584)
        self.assertEqual(sorted(os.listdir(self.target)),
                         ["projection.json", "projection.safetensors"])
        for name in os.listdir(EXPECTED):
            with open(os.path.join(EXPECTED, name), "rb") as a, \
                 open(os.path.join(self.target, name), "rb") as b:
                self.assertEqual(a.read(), b.read(), name)
        self.assertEqual(self.tensor("encoder_v.weight"), values(1, 256))
        self.assertEqual(self.tensor("layers.2.v.weight"), values(7, 512))

    def test_a_projection_that_is_there(self):
        self.convert()
        for name in ("projection.json", "projection.safetensors"):
            other = {"projection.json", "projection.safetensors"} - {name}
            os.unlink(os.path.join(self.target, other.pop()))
            before = os.stat(os.path.join(self.target, name))
            with self.assertRaises(tool.Refused) as why:
                self.convert()
            self.assertIn(name + "' exists: --force", str(why.exception))
            self.assertEqual(os.stat(os.path.join(self.target, name)).st_ino, before.st_ino)
            self.assertEqual(tool.convert(self.source, self.target, self.verifier, force=True), 3584)

    def test_layers_of_their_own_shapes(self):
        self.put(self.source, "f_theta_config.json",
                 dict(CONFIG, verifier_layer_kv_heads=[4, 4, 2],
                      verifier_layer_head_dims=[8, 8, 32]))
        save(self.weights, tensors((32, 32, 64)))
        self.convert()
        config, header, _ = self.written()
        self.assertEqual(config["layers"][2],
                         {"layer": 2, "kv_heads": 2, "head_dim": 32, "k_eq_v": True})
        self.assertEqual(header["layers.2.k.weight"]["shape"], [64, 16])
        self.assertEqual(config["drafter_layers"] * config["drafter_kv_heads"]
                         * config["drafter_head_dim"], config["inputs"])

    def test_what_a_verifier_says(self):
        self.put(self.verifier, "config.json", {"hidden_size": 8, "num_hidden_layers": 3})
        self.convert()
        config, _, _ = self.written()
        self.assertEqual(config["hidden"], 8)
        self.assertFalse(any(layer["k_eq_v"] for layer in config["layers"]))

    def test_types_and_views(self):
        state = tensors()
        first = values(0, 256)
        state["encoder_k.weight"] = FakeTensor(first, (16, 16), "DoubleStorage")
        state["encoder_v.weight"] = FakeParameter(FakeTensor([9.0] * 5 + first, (16, 16), offset=5))
        halves = struct.pack("<512e", *values(2, 512))
        state["decoders_k.0.weight"] = FakeTensor(halves, (32, 16), "HalfStorage")
        short = b"".join(struct.pack("<f", v)[2:] for v in values(3, 512))
        state["decoders_v.0.weight"] = FakeTensor(short, (32, 16), "BFloat16Storage")
        save(self.weights, state)
        self.convert()
        _, header, _ = self.written()
        self.assertEqual(self.tensor("encoder_k.weight"), first)
        self.assertEqual(self.tensor("encoder_v.weight"), first)
        self.assertEqual(self.tensor("layers.0.k.weight", "e"), values(2, 512))
        self.assertEqual(header["layers.0.v.weight"]["dtype"], "BF16")
        for entry in header.values():
            size = {"F32": 4, "F16": 2, "BF16": 2}[entry["dtype"]]
            self.assertEqual(entry["data_offsets"][0] % size, 0)

    def test_configurations_that_are_refused(self):
        for change, says in (
                ({"rank": 0}, "rank is 0, outside 1..8192"),
                ({"rank": 8193}, "rank is 8193"),
                ({"rank": True}, "rank is True, not an integer"),
                ({"drafter_head_dim": 4.0}, "drafter_head_dim is 4.0, not an integer"),
                ({"verifier_num_layers": 257}, "verifier_num_layers is 257"),
                ({"verifier_layer_kv_heads": [4, 4]}, "has 2 entries for 3 layers"),
                ({"verifier_layer_head_dims": 8}, "has no list of entries for 3 layers"),
                ({"verifier_layer_head_dims": [8, 8, 0]}, "verifier_layer_head_dims[2] is 0"),
                ({"drafter_num_kv_heads": 1024, "drafter_num_layers": 64, "drafter_head_dim": 512},
                 "is 33554432, outside"),
                ({"bias": True}, "unknown field 'bias'"),
                ({"verifier_num_layers": 4}, "is for 4 layers, the verifier has 3")):
            self.put(self.source, "f_theta_config.json", dict(CONFIG, **change))
            self.refused(says)
        missing = dict(CONFIG)
        del missing["drafter_head_dim"]
        self.put(self.source, "f_theta_config.json", missing)
        self.refused("drafter_head_dim is missing")
        self.put(self.source, "f_theta_config.json", "{")
        self.refused("is no JSON")
        self.put(self.source, "f_theta_config.json", "[]")
        self.refused("is no JSON object")
        os.unlink(os.path.join(self.source, "f_theta_config.json"))
        self.refused("f_theta_config.json': No such file")
        self.source = os.path.join(self.place.name, "nowhere")
        self.refused("is no folder")

    def test_verifiers_that_are_refused(self):
        text = VERIFIER["text_config"]
        for change, says in (({"hidden_size": None}, "hidden_size is None"),
                             ({"layer_types": ["full_attention"]}, "the verifier has 1"),
                             ({"num_kv_shared_layers": 2}, "2 layers read another's K/V")):
            self.put(self.verifier, "config.json", {"text_config": dict(text, **change)})
            self.refused(says)
        os.unlink(os.path.join(self.verifier, "config.json"))
        self.refused("config.json': No such file")

    def test_tensors_that_are_refused(self):
        for key in tensors():
            state = tensors()
            del state[key]
            save(self.weights, state)
            self.refused(f"has no '{key}'")
            state = tensors()
            shape = state[key].shape
            state[key] = FakeTensor([0.0] * (shape[0] * 8), (shape[0], 8))
            save(self.weights, state)
            self.refused(f"'{key}' has shape [{shape[0]}, 8]")
        state = tensors()
        state["encoder_k.bias"] = FakeTensor([0.0] * 16, (16, 1))
        save(self.weights, state)
        self.refused("has 'encoder_k.bias', which no projection has")
        for bad, says in (
                (FakeTensor([0.0] * 256, (16, 16), stride=(1, 16)), "save it contiguous"),
                (FakeTensor([0.0] * 255, (16, 16)), "does not fit its storage of 255"),
                (FakeTensor([0.0] * 256, (16, 16), offset=1), "does not fit"),
                (FakeTensor([0.0] * 256, (16, 16), stride=(16,)), "2 dims and 1 strides"),
                (FakeTensor([0.0] * 255, (16, 16), count=256), "has 1020 bytes, not those of 256"),
                (FakeTensor([0] * 256, (16, 16), "IntStorage"), "it needs torch.IntStorage"),
                (7, "'encoder_k.weight' is no tensor"),
                (FakeParameter(7), "a parameter is no tensor")):
            state = tensors()
            state["encoder_k.weight"] = bad
            save(self.weights, state)
            self.refused(says)

    def test_files_that_are_no_weights(self):
        save(self.weights, [1])
        self.refused("holds no state dict")
        save(self.weights, tensors(), compress=zipfile.ZIP_DEFLATED)
        self.refused("compressed")
        save(self.weights, tensors(), order=b"big")
        self.refused("byte order 'big'")
        save(self.weights, tensors(), data=b"")
        self.refused("its pickle is broken")
        with zipfile.ZipFile(self.weights, "w") as file:
            file.writestr("archive/version", "3\n")
        self.refused("has no data.pkl")
        save(self.weights, tensors())
        with open(self.weights, "rb") as file:
            whole = file.read()
        for cut in (0, 1, 100, len(whole) // 2, len(whole) - 1):
            with open(self.weights, "wb") as file:
                file.write(whole[:cut])
            self.refused("is no zip")
        middle = whole.index(struct.pack("<4f", *values(4, 4)))
        with open(self.weights, "wb") as file:
            file.write(whole[:middle] + b"\xff" + whole[middle + 1:])
        self.refused("Bad CRC-32")
        os.unlink(self.weights)
        self.refused("No such file")

    def test_a_pickle_runs_nothing(self):
        """Programs in the place of a state dict: each is refused by the name of what it calls."""
        mark = os.path.join(self.place.name, "ran")
        touch = f"c%s\n%s\n(S'touch {mark}'\ntR."
        for module, name in (("os", "system"), ("posix", "system"), ("builtins", "eval"),
                             ("subprocess", "getoutput"), ("torch", "load"),
                             ("builtins", "getattr"), ("collections", "namedtuple")):
            save(self.weights, None, data=(touch % (module, name)).encode())
            self.refused(f"it needs {module}.{name}")
        # What it does know takes no state and no other arguments.
        save(self.weights, None, data=b"ctorch._utils\n_rebuild_tensor_v2\n(S'x'\ntR.")
        self.refused("is broken")
        save(self.weights, None, data=b"ctorch._utils\n_rebuild_tensor_v2\n}b.")
        self.refused("given a state")
        save(self.weights, None, data=b"\x80\x02S'name'\nQ.")
        self.refused("which is no storage")
        self.assertFalse(os.path.exists(mark))

    def test_a_failed_write_leaves_the_old_one(self):
        self.convert()
        before = self.written()
        state = tensors()
        state["decoders_v.2.weight"] = FakeTensor([0.0] * 100, (32, 16), count=512)
        save(self.weights, state)
        with self.assertRaises(tool.Refused):
            self.convert()
        self.assertEqual(self.written(), before)
        self.assertEqual(len(os.listdir(self.target)), 2)


def write_expected(folder):
    case = Converter()
    case.setUp()
    case.target = folder
    case.convert()
    case.doCleanups()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_expected(sys.argv[2])
    else:
        unittest.main()
