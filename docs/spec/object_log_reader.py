"""A slow reader of the object log, made from docs/spec/object-log.md and nothing else.

It exists to check the specification and the program against each other: both read the same logs, and what
they print has to be equal, value by value. So this file must never be made from the program's source. Where
the page leaves a choice, it takes the literal reading, and where there is none, the one that believes less.
Section numbers are those of the page.

    python3 docs/spec/object_log_reader.py PATH        PATH: a log, or a directory of logs

One JSON document goes to standard output. Any bytes are input: damage is counted, never an exception. Memory
is the length of a log, and a bit for each object of the records that are believed.
"""

import json
import os
import re
import struct
import sys
import zlib
from dataclasses import dataclass
from types import GeneratorType
from typing import Optional

VERSION = 1
PAGE_BYTES = 512
PAYLOAD_BYTES_MAX = 504
CELL_OBJECTS = 8 * PAYLOAD_BYTES_MAX
INDEX_HEADER_BYTES = 28
RECORD_BYTES_MIN = 80
RECORDS_BYTES_MAX = PAGE_BYTES - INDEX_HEADER_BYTES
PATH_BYTES_MAX = 65_536 * 1_025
OBJECTS_MAX = 1 << 32
OFFSET_END = 1 << 63
EXTENTS_MAX = 5
NUMBER_END = 1 << 64
GROUPS_MAX = 6

MAGIC = b"HOLX"
MECHANISMS = ("file", "transaction", "universal")
METHODS = ("char", "int", "enc", "binary", "bit8", "bit64")
FLAG_CONTINUED, FLAG_BOOT, FLAG_PATH_OUTSIDE, FLAG_ORIGIN = 1, 2, 4, 8

LOG_NAME = re.compile(r"(?:file|transaction|universal)-([1-9][0-9]{0,19})\.log")
INDEX_HEADER = struct.Struct("<I4sHBBIQHH")
RECORD_HEADER = struct.Struct("<HBBIIIIIQqqIIQ16s")
EXTENT = struct.Struct("<QQ")
ORIGIN = struct.Struct("<QI")


class Refused(Exception):
    """What ends the program with one line and exit code 1."""


def ceil_div(number, divisor):
    return -(-number // divisor)


class ObjectSet:
    """Which objects are durable, 4032 to a word as in a cell of a bitmap. Words of zeros are not kept."""

    def __init__(self):
        self.words = {}

    def add_word(self, at, bits):
        if bits:
            self.words[at] = self.words.get(at, 0) | bits

    def add(self, number):
        self.add_word(number // CELL_OBJECTS, 1 << number % CELL_OBJECTS)

    def add_all(self, other):
        for at, bits in other.words.items():
            self.add_word(at, bits)

    def count(self):
        return sum(bin(bits).count("1") for bits in self.words.values())

    def ranges(self):
        """Inclusive, maximal, ascending. One by one: as a list they could be far longer than the bits."""
        first = end = 0
        for at in sorted(self.words):
            bits, begin = self.words[at], at * CELL_OBJECTS
            while bits:
                zeros = (bits & -bits).bit_length() - 1
                bits >>= zeros
                ones = (~bits & (bits + 1)).bit_length() - 1
                bits >>= ones
                begin += zeros
                if begin != end:
                    if end > first:
                        yield [first, end - 1]
                    first = begin
                begin += ones
                end = begin
        if end > first:
            yield [first, end - 1]


@dataclass
class Record:
    path: bytes
    generation: int
    origin: Optional[tuple]  # (number of a log, generation), if the record is continued
    hash_kind: int
    object_bytes: int
    objects: int
    size: int
    mtime: tuple
    ctime: tuple
    inode: int
    token: bytes
    sink_boot: Optional[bytes]
    extents: list
    method: str
    done: ObjectSet
    log_number: int
    log_name: str

    def binding(self):
        """Section 4: objects count only for a transfer with the same binding."""
        return (self.size, self.mtime, self.ctime, self.inode, self.object_bytes, self.objects,
                self.hash_kind, self.token, self.sink_boot)


# Section 6: methods. Readers of numbers give object numbers, and None, as the last, for what is no number.

def decimal_numbers(payload):
    at = 0
    while at < len(payload) and payload[at] != 0:
        end = payload.find(b"\n", at)
        if end < 0 or not payload[at:end].isdigit() or int(payload[at:end]) >= NUMBER_END:
            yield None
            return
        yield int(payload[at:end])
        at = end + 1


def grouped_numbers(payload):
    at = 0
    while at < len(payload) and payload[at] != 0:
        value = groups = 0
        while True:
            if at == len(payload) or groups == GROUPS_MAX:
                yield None
                return
            group = payload[at]
            value |= (group & 0x7F) << 7 * groups
            at, groups = at + 1, groups + 1
            if group < 0x80:
                break
        if group == 0:
            yield None
            return
        yield value - 1


def fixed_numbers(payload, width):
    for at in range(0, len(payload) - width + 1, width):
        value = int.from_bytes(payload[at:at + width], "little")
        if value == 0:
            return
        yield value - 1


def numbers(method, payload):
    if method == "char":
        return decimal_numbers(payload)
    if method == "enc":
        return grouped_numbers(payload)
    return fixed_numbers(payload, {"int": 8, "binary": 4}[method])


def extent_lengths(method, objects):
    """Data_Length of each extent that a record with this many objects has."""
    if method in ("bit8", "bit64"):
        payload_bytes = ceil_div(objects, 8) if method == "bit8" else 8 * ceil_div(objects, 64)
        return [outside_bytes(payload_bytes)]
    width = {"char": len(str(objects - 1)) + 1, "int": 8, "enc": ceil_div(objects.bit_length(), 7),
             "binary": 4}[method]
    if objects * width <= PAYLOAD_BYTES_MAX:
        return [8 + objects * width]
    pages_left = ceil_div(objects, PAYLOAD_BYTES_MAX // width)
    first_pages = ceil_div(pages_left, 16)
    lengths = []
    for factor in (1, 1, 2, 4, 8):
        pages = min(factor * first_pages, pages_left)
        if pages:
            lengths.append(pages * PAGE_BYTES)
        pages_left -= pages
    return lengths


def outside_bytes(payload_bytes):
    """Length of the extent of a bitmap or of a path (sections 5 and 6)."""
    if payload_bytes <= PAYLOAD_BYTES_MAX:
        return 8 + payload_bytes
    return PAGE_BYTES * ceil_div(payload_bytes, PAYLOAD_BYTES_MAX)


def is_placed(offset, length):
    """Extents of up to 512 bytes lie within one page, longer ones start on a page (section 5)."""
    if length <= PAGE_BYTES:
        return offset % PAGE_BYTES + length <= PAGE_BYTES
    return offset % PAGE_BYTES == 0


def record_places(flags, extent_count):
    """Where in a record boot id, origin and path are, or would be."""
    boot_at = RECORD_BYTES_MIN + extent_count * EXTENT.size
    origin_at = boot_at + (16 if flags & FLAG_BOOT else 0)
    return boot_at, origin_at, origin_at + (ORIGIN.size if flags & FLAG_ORIGIN else 0)


def is_well_formed(data, length):
    """Is it as the table of section 4 says? Else nothing is known of what is behind it either."""
    if len(data) != length or length < RECORD_BYTES_MIN:
        return False
    _, flags, _, generation, _, objects, path_bytes, extent_count = RECORD_HEADER.unpack_from(data)[:8]
    known_flags = FLAG_CONTINUED | FLAG_BOOT | FLAG_PATH_OUTSIDE | FLAG_ORIGIN
    if flags & ~known_flags or generation == 0 or objects == 0:
        return False
    if flags & FLAG_ORIGIN and not flags & FLAG_CONTINUED:
        return False
    if path_bytes > PATH_BYTES_MAX or extent_count > EXTENTS_MAX:
        return False
    boot_at, _, path_at = record_places(flags, extent_count)
    if length != path_at + (EXTENT.size if flags & FLAG_PATH_OUTSIDE else path_bytes):
        return False
    extents = list(EXTENT.iter_unpack(data[RECORD_BYTES_MIN:boot_at]))
    if flags & FLAG_PATH_OUTSIDE:
        extents.append(EXTENT.unpack(data[path_at:]))
        if extents[-1][1] != outside_bytes(path_bytes):
            return False
    return all(sum(extent) < OFFSET_END for extent in extents)


class Log:
    """One log, its records and what of it was not believed."""

    def __init__(self, name, number, content, objects_left):
        self.name, self.number, self.content = name, number, content
        self.bytes = len(content)
        self.mechanism = self.method = self.transaction_files = None
        self.damaged = 0
        self.records = []
        self.objects_left = objects_left
        self.path_bytes_left = len(content)  # of paths outside (section 10)
        for offset in range(0, len(content), PAGE_BYTES):
            self.read_page(offset)
        self.content = b""

    def read_page(self, offset):
        page = self.content[offset:offset + PAGE_BYTES]
        if page[4:8] != MAGIC:
            # The first page is an index page, unless it was never written.
            self.damaged += offset == 0 and any(page)
            return
        header = self.read_index_header(offset, page)
        if header is None:
            self.damaged += 1
            return
        count, records_bytes = header
        rest = page[INDEX_HEADER_BYTES:INDEX_HEADER_BYTES + records_bytes]
        for _ in range(count):
            length = int.from_bytes(rest[:2], "little")
            data, rest = rest[:length], rest[length:]
            if not is_well_formed(data, length):
                self.damaged += 1
                return
            record = self.read_record(data, METHODS[page[11]])
            if record is None:
                self.damaged += 1
                continue
            self.objects_left -= record.objects
            self.records.append(record)
            self.read_objects(record)

    def read_index_header(self, offset, page):
        """How many records there are, and their bytes; None if the page is not believed (section 3)."""
        if len(page) < PAGE_BYTES:
            return None
        (crc, _, version, mechanism, method, transaction_files, number, count,
         records_bytes) = INDEX_HEADER.unpack_from(page)
        if crc != zlib.crc32(b"I" + struct.pack("<Q", offset) + page[4:]):
            return None
        if version > VERSION:
            raise Refused(f"{self.name}: log version {version} is newer than {VERSION}")
        if version == 0 or mechanism >= len(MECHANISMS) or method >= len(METHODS):
            return None
        if number != self.number or records_bytes > RECORDS_BYTES_MAX:
            return None
        if self.mechanism is None:
            self.mechanism, self.method = MECHANISMS[mechanism], METHODS[method]
            self.transaction_files = transaction_files
        return count, records_bytes

    def read_record(self, data, method):
        """A well-formed record without its objects; None if it is damaged (section 4)."""
        (_, flags, hash_kind, generation, object_bytes, objects, path_bytes, extent_count, size,
         mtime, ctime, mtime_nanos, ctime_nanos, inode, token) = RECORD_HEADER.unpack_from(data)
        boot_at, origin_at, path_at = record_places(flags, extent_count)
        extents = list(EXTENT.iter_unpack(data[RECORD_BYTES_MIN:boot_at]))
        lengths = extent_lengths(method, objects)
        if len(extents) != len(lengths) or objects > self.objects_left:
            return None
        for (offset, length), length_right in zip(extents, lengths):
            if (offset, length) != (0, 0) and not (length == length_right and is_placed(offset, length)):
                return None
        path = data[path_at:]
        if flags & FLAG_PATH_OUTSIDE:
            path = self.read_path(EXTENT.unpack(path), path_bytes, generation, token)
            if path is None:
                return None
            self.path_bytes_left -= path_bytes
        origin = None
        if flags & FLAG_CONTINUED:
            origin = ORIGIN.unpack(data[origin_at:path_at]) if flags & FLAG_ORIGIN else (0, 0)
        return Record(path, generation, origin, hash_kind, object_bytes, objects, size,
                      (mtime, mtime_nanos), (ctime, ctime_nanos), inode, token,
                      data[boot_at:origin_at] if flags & FLAG_BOOT else None,
                      extents, method, ObjectSet(), self.number, self.name)

    def read_path(self, extent, path_bytes, generation, token):
        if path_bytes > self.path_bytes_left or not is_placed(*extent):
            return None
        payloads = [payload for _, payload in self.cells(b"P", extent, generation, token)]
        if len(payloads) != ceil_div(extent[1], PAGE_BYTES):
            return None
        return b"".join(payloads)[:path_bytes]

    def read_objects(self, record):
        for extent in record.extents:
            for at, payload in self.cells(b"D", extent, record.generation, record.token):
                if record.method in ("bit8", "bit64"):
                    bits = int.from_bytes(payload, "little")
                    bits_in_use = max(0, min(CELL_OBJECTS, record.objects - at * CELL_OBJECTS))
                    record.done.add_word(at, bits & ((1 << bits_in_use) - 1))
                else:
                    self.read_numbers(record, payload)

    def read_numbers(self, record, payload):
        damaged = False
        for number in numbers(record.method, payload):
            if number is None or number >= record.objects:
                damaged = True
            else:
                record.done.add(number)
        self.damaged += damaged

    def cells(self, kind, extent, generation, token):
        """(which cell of the extent, payload) of cells that count; damaged ones are counted (section 5)."""
        offset, length = extent
        extent_end = offset + length
        for at, begin in enumerate(range(offset, min(extent_end, self.bytes), PAGE_BYTES)):
            end = min(extent_end, begin + PAGE_BYTES)
            cell = self.content[begin:end]
            if cell[4:8] != struct.pack("<I", generation):
                continue
            crc = zlib.crc32(kind + struct.pack("<QQ", self.number, begin) + token + cell[4:])
            if begin + len(cell) < end or cell[:4] != struct.pack("<I", crc):
                self.damaged += 1
                continue
            yield at, cell[8:]


# Section 7: reading a directory.

def log_files(path):
    """(number, name, file) of each log, the newest first."""
    try:
        if os.path.isdir(path):
            folder, names = path, os.listdir(path)
        else:
            os.stat(path)
            folder, names = os.path.dirname(path), [os.path.basename(path)]
        found = []
        for name in names:
            match = LOG_NAME.fullmatch(name)
            file = os.path.join(folder, name)
            if match and int(match[1]) < 1 << 64 and os.path.isfile(file):
                found.append((int(match[1]), name, file))
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if not found and not os.path.isdir(path):
        raise Refused(f"{path}: no log there (file-N.log, transaction-N.log or universal-N.log)")
    return sorted(found, reverse=True)


def read_logs(path):
    logs, objects_left = [], OBJECTS_MAX
    for number, name, file in log_files(path):
        try:
            with open(file, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise Refused(f"{file}: {error.strerror}") from None
        logs.append(Log(name, number, content, objects_left))
        objects_left = logs[-1].objects_left
    return logs[::-1]


def entries(logs):
    """(the record that counts, its objects and those joined to it), by path."""
    histories = {}
    for log in logs:
        # The sort is stable: of equal generations, the one that stands earlier in the log is the later.
        for record in sorted(log.records[::-1], key=lambda record: record.generation):
            histories.setdefault(record.path, []).append(record)
    for path in sorted(histories):
        latest_first = histories[path][::-1]
        counts, done = latest_first[0], ObjectSet()
        done.add_all(counts.done)
        origin = (0, 0)
        for before, record in zip(latest_first, latest_first[1:]):
            if before.origin is None or record.binding() != counts.binding():
                break
            origin = max(origin, before.origin)
            if (record.log_number, record.generation) < origin:
                break
            done.add_all(record.done)
        yield counts, done


# The document.

def path_fields(path):
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return {"path": text, "path_hex": path.hex()}


def source_fields(record):
    return {"hash_kind": record.hash_kind, "object_bytes": record.object_bytes, "objects": record.objects,
            "size": record.size, "mtime": record.mtime, "ctime": record.ctime, "inode": record.inode,
            "token": record.token.hex(), "sink_boot": record.sink_boot and record.sink_boot.hex()}


def done_fields(done):
    return {"done": done.ranges(), "done_count": done.count()}


def record_document(record):
    return {**path_fields(record.path), "generation": record.generation,
            "continued": record.origin is not None, "origin": record.origin,
            **source_fields(record), "extents": record.extents, **done_fields(record.done)}


def entry_document(record, done):
    return {**path_fields(record.path), **source_fields(record), "log": record.log_name,
            "continued": record.origin is not None, **done_fields(done)}


def log_document(log):
    return {"name": log.name, "number": log.number, "bytes": log.bytes, "mechanism": log.mechanism,
            "method": log.method, "transaction_files": log.transaction_files, "damaged": log.damaged,
            "records": (record_document(record) for record in log.records)}


def write_json(write, value, margin="\n"):
    """Objects take lines, lists of numbers do not. Generators are lists that are never whole in memory."""
    inner = margin + "  "
    if isinstance(value, dict):
        separator = "{"
        for name, part in value.items():
            write(f"{separator}{inner}{json.dumps(name)}: ")
            write_json(write, part, inner)
            separator = ","
        write(margin + "}")
    elif isinstance(value, (list, tuple, GeneratorType)):
        write("[")
        separator = ""
        for part in value:
            write(separator + (inner if isinstance(part, dict) else " " if separator else ""))
            write_json(write, part, inner)
            separator = ","
        write("]")
    else:
        write(json.dumps(value))


def main(arguments):
    if len(arguments) != 1:
        print("usage: object_log_reader.py PATH", file=sys.stderr)
        return 2
    try:
        logs = read_logs(arguments[0])
        write_json(sys.stdout.write, {
            "version": VERSION,
            "logs": (log_document(log) for log in logs),
            "entries": (entry_document(record, done) for record, done in entries(logs)),
        })
        sys.stdout.write("\n")
        sys.stdout.flush()
    except Refused as refused:
        print(f"object_log_reader: {refused}", file=sys.stderr)
        return 1
    except MemoryError:
        print(f"object_log_reader: {arguments[0]}: not enough memory", file=sys.stderr)
        return 1
    except OSError as error:
        # What is left in the buffer has nowhere to go, and would raise once more at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"object_log_reader: standard output: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
