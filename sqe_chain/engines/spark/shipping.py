"""How a flow and the user's code reach workers that share no directory with the driver.

The flow itself travels with each job, pickled: functions of importable modules by their names, lambdas
and what is defined in a notebook or in `__main__` by value. The modules are sent once, as one zip file.
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
from sqe_chain.engines.spark.workplace import workplace
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow

LARGEST_FILE = 1 << 20
"""Other files than Python's beside the modules go along up to this size, in bytes."""

LARGEST_ZIP = 64 << 20
"""More than this is not sent: it belongs into an installed package."""

_OWN = "sqe_chain"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same zip

_unpacked: dict[str, Flow] = {}


@dataclass(frozen=True, slots=True)
class PackedFlow:
    """A flow on its way to a worker.

    Attributes:
        digest: names it, so that a process unpacks it once.
        blob: the pickled flow, with the types of values that the script defines and no worker can import.
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
                "must not hold connections, locks, open files or the Spark session; open them within the function"
            ) from error
        blob = buffer.getvalue()
        return cls(blake2b(blob, digest_size=16).hexdigest(), blob)

    def unpacked(self) -> Flow:
        """The flow, unpacked once a process.

        Raises:
            ConfigurationError: a module is missing on this worker.
        """
        flow: Flow | None = _unpacked.get(self.digest)
        if flow is None:
            try:
                flow, python_types = cloudpickle.loads(self.blob)
            except ImportError as error:
                raise ConfigurationError(
                    f"a worker cannot import what the flow needs: {error}. Packages that are installed beside the driver "
                    "must be installed on the workers too, in the same versions"
                ) from error
            make_known(python_types)
            _unpacked.clear()
            _unpacked[self.digest] = flow
        return flow


class _FlowPickler(cloudpickle.CloudPickler):
    """Cloudpickle, for protobuf types and structs too.

    A generated class names its module as protoc was given the path, seldom as it is imported; and it
    cannot be taken apart. So it goes by the name of the module that it is found in, else by its file.
    Structs of the script cannot be taken apart either: see `sqe_chain.codecs.struct_pickle`.
    """

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - any object can be pickled
        """See `pickle.Pickler.reducer_override`."""
        if isinstance(obj, type) and issubclass(obj, Message) and obj is not Message:
            file: Any = obj.DESCRIPTOR.file
            module = _module_of(file)
            files = () if module else tuple(_files_behind(file))
            return _message_type, (obj.DESCRIPTOR.full_name, module, files)
        if getattr(obj, "__module__", "") == "__main__" and "msgspec" in sys.modules:
            from sqe_chain.codecs.struct_pickle import is_struct, reduced  # noqa: PLC0415 - it needs msgspec

            if is_struct(obj):
                return reduced(obj)
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


def _files_behind(file: FileDescriptor) -> Iterator[bytes]:
    """A .proto file behind those it imports, serialized."""
    for imported in file.dependencies:
        yield from _files_behind(imported)
    yield file.serialized_pb


def _message_type(full_name: str, module: str, files: tuple[bytes, ...]) -> type[Message]:
    """The protobuf type, on the worker."""
    if module:
        importlib.import_module(module)
    pool: Any = descriptor_pool.Default()
    for data in files:
        pool.AddSerializedFile(data)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


def ship(session: SparkSession) -> list[str]:
    """Send the user's modules to all workers, of now and of later: those loaded here and not installed.

    Of a package everything goes, but for files that are not Python's and larger than `LARGEST_FILE`.
    Compiled extension modules cannot be imported from a zip: install them.

    Returns:
        The names of the modules and packages sent.

    Raises:
        ConfigurationError: they are larger than `LARGEST_ZIP`.
    """
    files = dict(sorted(_files()))
    if not files:
        return []
    digest = blake2b(digest_size=8)
    directory = workplace()  # executors that join later fetch it from there
    target = directory / "modules.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(
            {f"{parent}/" for name in files for parent in Path(name).parents if parent.name}
        ):
            archive.writestr(zipfile.ZipInfo(folder, _EPOCH), b"")  # packages without __init__.py need it
        for name, path in files.items():
            data = path.read_bytes()
            digest.update(name.encode() + b"\0" + data)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    if target.stat().st_size > LARGEST_ZIP:
        raise ConfigurationError(
            f"the modules beside the flow take {target.stat().st_size >> 20} MiB zipped ({_largest(files)} is the largest "
            f"file), more than {LARGEST_ZIP >> 20} MiB: install them on the workers as a package"
        )
    named = target.rename(
        directory / f"sqe-chain-{digest.hexdigest()}.zip"
    )  # a name is known for its content
    before = list(sys.path)
    session.addArtifacts(str(named), pyfile=True)
    sys.path[:] = before  # the driver has the modules themselves
    return sorted({name.partition("/")[0].removesuffix(".py") for name in files})


def _files() -> Iterator[tuple[str, Path]]:
    """Name in the zip, and path, of every file to send."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("__main__", "__mp_main__", _OWN) or not isinstance(module, ModuleType):
            continue
        if not file or not file.endswith(".py") or _installed(Path(file)) or not Path(file).is_file():
            continue
        place = name.replace(".", "/")
        if Path(file).name != "__init__.py":
            yield f"{place}.py", Path(file)
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
                yield f"{place}/{below.as_posix()}", path


def _installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(root) for root in {*roots, site.getusersitepackages()} if root)


def _largest(files: dict[str, Path]) -> str:
    return max(files, key=lambda name: files[name].stat().st_size)
