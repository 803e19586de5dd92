"""Sends a flow and the user's code to workers that share no directory with the driver.

The flow is pickled with each job: functions of importable modules by name; lambdas, and whatever is defined
in a notebook or in `__main__`, by value. The modules are sent once, as one zip file.
"""

from __future__ import annotations

import importlib
import io
import site
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from sqe_chain.codecs.registry import classes_of_script, make_known
from sqe_chain.codecs.window import Window, reduced
from sqe_chain.engines.spark.workplace import make_temporary_directory
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow

LARGEST_FILE = 1 << 20
"""Files in packages that are not Python's are sent, too, up to this size in bytes."""

LARGEST_ZIP = 64 << 20
"""Limit of the zip file in bytes: anything larger should be an installed package."""

_OWN = "sqe_chain"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same zip

_unpacked: dict[str, Flow] = {}


@dataclass(frozen=True, slots=True)
class PackedFlow:
    """A pickled flow.

    Attributes:
        digest: identifies it, so that a process unpacks it only once.
        blob: the pickled flow, with the value types that the script defines, because no worker can import them.
    """

    digest: str
    blob: bytes

    @classmethod
    def of(cls, flow: Flow) -> PackedFlow:
        """Pack a flow.

        Raises:
            ConfigurationError: something in it cannot be sent.
        """
        try:
            buffer = io.BytesIO()
            _FlowPickler(buffer).dump((flow, list(filter(_can_be_sent, classes_of_script()))))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise ConfigurationError(
                f"flow {flow.name!r} cannot be sent to Spark's workers: {type(error).__name__}: {error}. Its functions "
                "must not hold connections, locks, open files or the Spark session; open them inside the function"
            ) from error
        blob = buffer.getvalue()
        return cls(blake2b(blob, digest_size=16).hexdigest(), blob)

    def unpack(self) -> Flow:
        """The flow; unpacked once per process.

        Raises:
            ConfigurationError: a module is missing on this worker.
        """
        flow: Flow | None = _unpacked.get(self.digest)
        if flow is None:
            try:
                flow, python_types = cloudpickle.loads(self.blob)
            except ImportError as error:
                raise ConfigurationError(
                    f"a worker cannot import what the flow needs: {error}. Packages that are installed on the driver "
                    "must be installed on the workers too, in the same versions"
                ) from error
            make_known(python_types)
            _unpacked.clear()  # keep only the newest
            _unpacked[self.digest] = flow
        return flow


class _FlowPickler(cloudpickle.CloudPickler):
    """Cloudpickle that can also pickle protobuf types and structs.

    The module name in a generated class comes from the path that protoc was given, and is seldom the name under
    which it is imported; and cloudpickle cannot pickle such a class by value. So it is pickled as the name of the
    module that contains it, or else as its .proto file. For structs of the script see
    `sqe_chain.codecs.struct_pickle`.
    """

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - any object can be pickled
        """See `pickle.Pickler.reducer_override`."""
        if isinstance(obj, type) and issubclass(obj, Message) and obj is not Message:
            file: Any = obj.DESCRIPTOR.file
            module = _module_of(file)
            files = () if module else tuple(_with_imports(file))
            return _message_type, (obj.DESCRIPTOR.full_name, module, files)
        if isinstance(obj, type) and issubclass(obj, Window) and obj is not Window:
            return reduced(obj)
        if getattr(obj, "__module__", "") == "__main__" and "msgspec" in sys.modules:
            from sqe_chain.codecs.struct_pickle import is_struct, reduce_struct  # noqa: PLC0415 - it needs msgspec

            if is_struct(obj):
                return reduce_struct(obj)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _can_be_sent(python_type: type) -> bool:
    """Whether a class can be pickled: those of the script that no flow uses may hold anything."""
    try:
        _FlowPickler(io.BytesIO()).dump(python_type)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - whatever its attributes raise
        return False
    return True


def _module_of(file: FileDescriptor) -> str:
    """The generated module of a .proto file as it is imported here; empty when there is none."""
    for name, module in list(sys.modules.items()):
        if name.endswith("_pb2") and getattr(module, "DESCRIPTOR", None) == file:
            return name
    return ""


def _with_imports(file: FileDescriptor) -> Iterator[bytes]:
    """The files that a .proto file imports, and then itself, serialized."""
    for imported in file.dependencies:
        yield from _with_imports(imported)
    yield file.serialized_pb


def _message_type(full_name: str, module: str, files: tuple[bytes, ...]) -> type[Message]:
    """The protobuf type, as a worker unpickles it."""
    if module:
        importlib.import_module(module)
    pool: Any = descriptor_pool.Default()
    for data in files:
        pool.AddSerializedFile(data)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


def ship(session: SparkSession) -> list[str]:
    """Send the user's modules to all workers, present and future: those imported here but not installed.

    A package is sent completely, except files that are not Python's and larger than `LARGEST_FILE`. Compiled
    extension modules cannot be imported from a zip: install them.

    Returns:
        The names of the modules and packages sent.

    Raises:
        ConfigurationError: they are larger than `LARGEST_ZIP`.
    """
    files = dict(sorted(_files()))
    if not files:
        return []
    digest = blake2b(digest_size=8)
    directory = make_temporary_directory()  # it must stay: executors that join later fetch the zip from there
    target = directory / "modules.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(
            {f"{parent}/" for name in files for parent in Path(name).parents if parent.name}
        ):
            archive.writestr(
                zipfile.ZipInfo(folder, _EPOCH), b""
            )  # packages without __init__.py are found by these entries
        for name, path in files.items():
            data = path.read_bytes()
            digest.update(name.encode() + b"\0" + data)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    if target.stat().st_size > LARGEST_ZIP:
        raise ConfigurationError(
            f"the modules that the flow needs have {target.stat().st_size >> 20} MiB zipped ({_largest(files)} is the "
            f"largest file), more than {LARGEST_ZIP >> 20} MiB: install them on the workers as a package"
        )
    # Spark caches an artifact by its name, so other content needs another name.
    named = target.rename(directory / f"sqe-chain-{digest.hexdigest()}.zip")
    before = list(sys.path)
    session.addArtifacts(str(named), pyfile=True)
    sys.path[:] = (
        before  # addArtifacts put the zip first; the driver must keep importing the files themselves
    )
    return sorted({name.partition("/")[0].removesuffix(".py") for name in files})


def _files() -> Iterator[tuple[str, Path]]:
    """Name in the zip, and path, of every file to send."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("__main__", "__mp_main__", _OWN) or not isinstance(module, ModuleType):
            continue
        if not file or not file.endswith(".py") or _installed(Path(file)) or not Path(file).is_file():
            continue
        target = name.replace(".", "/")
        if Path(file).name != "__init__.py":
            yield f"{target}.py", Path(file)
            continue
        root = Path(file).parent
        for path in root.rglob("*"):
            below = path.relative_to(root)
            if (
                any(part == "__pycache__" or part.startswith(".") for part in below.parts)
                or not path.is_file()
            ):
                continue
            if path.suffix == ".py" or path.stat().st_size <= LARGEST_FILE:
                yield f"{target}/{below.as_posix()}", path


def _installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(root) for root in {*roots, site.getusersitepackages()} if root)


def _largest(files: dict[str, Path]) -> str:
    return max(files, key=lambda name: files[name].stat().st_size)
