"""Spoils files of binary forms where it hurts: headers, counts, offsets, and the entries of archives."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import warnings
import zipfile

from fuzz.spoil import WORDS, any_bytes, odd_word, text
from fuzz.trees import spoil_tree

SIZES = (0, 1, 2, 7, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "C64", "f32", "", "F32F32")


def safetensors(rng: random.Random, data: bytes) -> bytes:
    """A header that says otherwise, or a length of it, or data of other bytes."""
    length = int.from_bytes(data[:8], "little")
    body = data[8 + length :]
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError:
        return any_bytes(rng, data)
    names = [
        name
        for name, entry in header.items()
        if name != "__metadata__" and isinstance(entry, dict) and "shape" in entry
    ]
    match rng.randrange(9):
        case 0:
            return any_bytes(rng, data)
        case 1:
            return struct.pack("<Q", rng.choice((*SIZES, length - 1, length + 1))) + data[8:]
        case 2 if names:
            entry = header[rng.choice(names)]
            entry["data_offsets"] = rng.choice(
                (
                    [0, 4],
                    entry["data_offsets"][::-1],
                    [rng.choice(SIZES), rng.choice(SIZES)],
                    [0],
                    [-4, 0],
                    [0, len(body)],
                )
            )
        case 3 if names:
            entry = header[rng.choice(names)]
            entry["shape"] = rng.choice(
                (
                    [2**32, 2**32],
                    [*entry["shape"], 1],
                    entry["shape"][::-1],
                    [],
                    [0],
                    [2**63],
                    [-1],
                    [rng.choice(SIZES)],
                )
            )
        case 4 if names:
            header[rng.choice(names)]["dtype"] = rng.choice(TYPES)
        case 5 if names:
            a, b = rng.choice(names), rng.choice(names)
            header[a], header[b] = header[b], header[a]
        case 6 if names:
            name = rng.choice(names)
            header[odd_word(rng, name)] = header.pop(name) if rng.random() < 0.7 else dict(header[name])
        case 7:
            numbers = bytearray(body)
            for _ in range(rng.choice((1, 40))):
                at = rng.randrange(0, max(1, len(body) - 4), 4)
                numbers[at : at + 4] = rng.choice(
                    (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\1\0\0\0", rng.randbytes(4))
                )
            body = bytes(numbers)
        case _:
            header = spoil_tree(rng, header)
    written = json.dumps(header).encode("utf-8", "surrogatepass")
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written + body


def gguf(rng: random.Random, data: bytes) -> bytes:
    """A version, a count, a type, a length or a name that is another; mostly in the head, which is not long."""
    # The head ends where the tensors' data begins: names of tensors stand last in it.
    end = data.rfind(b".weight") + 64
    match rng.randrange(8):
        case 0:
            return any_bytes(rng, data)
        case 1:
            at = rng.choice((4, 8, 16))  # version, tensors, keys
            size = 4 if at == 4 else 8
            count: int = rng.choice(SIZES) & ((1 << 8 * size) - 1)
            return data[:at] + count.to_bytes(size, "little") + data[at + size :]
        case 2:
            at = rng.randrange(24, end)
            return data[:at] + struct.pack("<Q", rng.choice(SIZES)) + data[at + 8 :]
        case 3:
            at = rng.randrange(24, end)
            return data[:at] + struct.pack("<I", rng.randrange(40)) + data[at + 4 :]
        case 4:
            names = list(re.finditer(rb"[a-z_0-9]+(?:\.[a-z_0-9]+)+", data[:end]))
            one, other = rng.choice(names), rng.choice(names)
            return data[: one.start()] + (other[0] * 9)[: len(one[0])] + data[one.end() :]
        case 5:  # the value after a key: its type, then its bytes
            keys = list(re.finditer(rb"(?:general|llama|qwen2|gemma2|phi3|tokenizer)\.[a-z_.0-9]+", data[:end]))
            at = rng.choice(keys).end()
            kind = struct.pack("<I", rng.randrange(14)) if rng.random() < 0.4 else data[at : at + 4]
            value = rng.choice(
                (
                    rng.randbytes(4),
                    struct.pack("<f", float("nan")),
                    struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1))),
                )
            )
            return data[:at] + kind + value + data[at + 8 :]
        case 6:
            return any_bytes(rng, data[:end]) + data[end:]
        case _:
            return data[: rng.randrange(len(data))]


def npy(rng: random.Random, data: bytes) -> bytes:
    """A header of another dtype, order or shape, or other bytes."""
    if rng.random() < 0.3:
        return any_bytes(rng, data)
    header, body = data[10:].split(b"\n", 1) if b"\n" in data[10:] else (data[10:], b"")
    words = header.decode("latin1")
    match rng.randrange(6):
        case 0:
            kind = rng.choice(
                (
                    "<f8",
                    "|O",
                    "|V4",
                    "<U9",
                    "|S3",
                    ">f4",
                    "<c8",
                    "<M8[ns]",
                    "<m8",
                    "[('a','<f4')]",
                    "f" * 300,
                    "<i4",
                    "<f2",
                    "|b1",
                    "",
                )
            )
            words = re.sub(r"'descr': '[^']*'", f"'descr': {kind if kind.startswith('[') else repr(kind)}", words)
        case 1:
            shape = rng.choice(
                (
                    "()",
                    "(0,)",
                    "(-1,)",
                    "(2**62,)",
                    "(9999999999999,)",
                    "(4611686018427387904, 4)",
                    "(1e3,)",
                    "'x'",
                    "(True,)",
                    "((1,),)",
                    "(3, 0)",
                )
            )
            words = re.sub(r"\([^)]*\)", shape, words)
        case 2:
            words = words.replace("False", rng.choice(("True", "1", "None", "'x'")))
        case 3:
            words = rng.choice(
                (
                    "[" * 500,
                    "{}",
                    "1",
                    "__import__('os')",
                    "{'descr': 1}",
                    "(" * 5000,
                    "{'a':" * 200,
                    "-" * 3000 + "1",
                    "",
                    "{**1}",
                )
            )
        case _:
            words = text(rng, header).decode("latin1")
    written = words.encode("latin1", "replace") + b"\n"
    version = data[6:8] if rng.random() < 0.9 else rng.randbytes(2)
    return data[:6] + version + struct.pack("<H", min(len(written), 65535)) + written[:65535] + body


def archive(rng: random.Random, data: bytes) -> bytes:
    """A zip file whose entries have other names, sizes, flags and contents."""
    if rng.random() < 0.3:
        return any_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        entries = [(info, old.read(info)) for info in old.infolist()[:4] if info.file_size < 10**7]
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        warnings.simplefilter("ignore")  # of names that stand twice
        for info, content in entries:
            name, kind = info.filename, rng.randrange(9)
            if kind == 0:
                continue
            if kind == 1:
                name = rng.choice(
                    ("../" + name, "/" + name, name + "/", "./" + name, name.upper(), name + "\0x", "a/" + name)
                )
            if kind == 2:
                new.writestr(name, content)
            if kind == 3:
                content = b"0" * rng.choice((10**6, 4 * 10**7))
            if kind == 4:
                content = any_bytes(rng, content)
            given = zipfile.ZipInfo(name)
            given.compress_type = 8 if len(content) > 10**6 else rng.choice((0, 8, 8, 12, 14))
            if kind == 5:
                given.external_attr = 0o120777 << 16
            new.writestr(given, content)
        if rng.random() < 0.2:
            for i in range(500):
                new.writestr(f"{i}", "")
    written = bytearray(made.getvalue())
    if rng.random() < 0.4:
        for mark, span in ((b"PK\1\2", (8, 46)), (b"PK\3\4", (6, 30)), (b"PK\5\6", (4, 22))):
            places = [found.start() for found in re.finditer(mark, bytes(written))]
            if places and rng.random() < 0.5:
                at = rng.choice(places) + rng.randrange(*span)
                written[at : at + 1] = bytes([rng.choice((0, 1, 8, 9, 99, 255))])
    return bytes(written)


TOKEN = re.compile(rb'%[\w#]+|@[\w"]+|"[^"\n]*"|[\w.]+|[^\s\w]')
MLIR = (
    b"tensor<0xf32>", b"tensor<?xf32>", b"tensor<*xf32>", b"tensor<99999999999xf32>", b"tensor<f4E2M1FN>", b"tensor<3xi3>", b"tensor<4x!quant.uniform<i8:f32, 0.0:1>>",
    b"tensor<2xcomplex<f32>>", b"tensor<i65>", b"tensor<4294967296x4294967296xi8>", b"index", b"none", b"tuple<>", b"vector<4xf32>", b"memref<4xf32>",
    b"dense<>", b'dense<"0x00">', b"dense<0x7FC00000>", b"dense_resource<a>", b"array<i64: 9, 9, 9>", b"array<i64>", b"#stablehlo<precision HIGH>",
    b"stablehlo.custom_call", b"stablehlo.case", b"stablehlo.while", b"stablehlo.composite", b"vhlo.add_v1", b"chlo.erf", b"arith.constant", b"func.call",
    b"func.func private", b"module", b"unrealized", b'"x.y"()', b"loc(unknown)", b'loc("")', b"{-#", b"!x", b"#loc1", b"^bb0", b"-1", b"0x", b"1.0e400",
    b'"\\00\\FF"', b"attributes {a = 1}", b"{tf.aliasing_output = 99 : i32}", b"{jax.buffer_donor = true}", b"return", b"stablehlo.return", b"true",
)  # fmt: skip


def mlir(rng: random.Random, data: bytes) -> bytes:
    """A token of MLIR's text left out, doubled, swapped with another or replaced."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        data = _mlir(rng, data)
    return data


def _mlir(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return text(rng, data)
    tokens = list(TOKEN.finditer(data))
    if len(tokens) < 2:
        return any_bytes(rng, data)
    one, other = rng.choice(tokens), rng.choice(tokens)
    if rng.random() < 0.5:  # by one of the same kind
        alike = [t for t in tokens if t[0][:1] == one[0][:1]]
        other = rng.choice(alike)
    match rng.randrange(8):
        case 0:
            return data[: one.start()] + data[one.end() :]
        case 1:
            return data[: one.end()] + b" " + data[one.start() :]
        case 2 | 3 | 4:
            return data[: one.start()] + other[0] + data[one.end() :]
        case 5:
            return data[: one.start()] + rng.choice(MLIR) + data[one.end() :]
        case 6:
            word = rng.choice(WORDS).encode("utf-8", "surrogatepass")
            return data[: one.start()] + (b'"%s"' % word if one[0].startswith(b'"') else word) + data[one.end() :]
        case _:
            n = rng.choice((50, 2000, 20000))
            pairs = (
                (b"tuple<", b">"),
                (b"[", b"]"),
                (b"(", b")"),
                (b"{a = ", b"}"),
                (b"dense<[", b"]>"),
                (b"module {", b"}"),
                (b'loc(callsite("a" at ', b"))"),
            )
            opened, closed = rng.choice(pairs)
            return data[: one.start()] + opened * n + one[0] + closed * n + data[one.end() :]
