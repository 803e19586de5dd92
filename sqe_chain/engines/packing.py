"""A flow as bytes, and what it is run with, for the processes that run its tasks.

Functions of importable modules are pickled by name; lambdas, and whatever is defined in a notebook or in `__main__`,
by value. A process that imports a module compares it with what the service was started with.
"""

from __future__ import annotations

import decimal
import importlib
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import FunctionType
from typing import Any

import cloudpickle
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from sqe_chain.codecs.codec import MadeClass
from sqe_chain.codecs.registry import classes_of_script, make_known
from sqe_chain.engines.globals_at_start import Noted, check_globals, globals_of, is_wrapper
from sqe_chain.engines.module_sources import check_modules, digests_of_modules
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Log, StateStore

_STATE = 2
"""Where a reduced object has its state; see `pickle`."""

_unpacked: dict[str, CompiledFlow] = {}


@dataclass(frozen=True, slots=True)
class PackedFlow:
    """A pickled flow.

    Attributes:
        digest: identifies it, so that a process unpacks it only once.
        blob: the pickled flow, with the value types that the script defines, because no worker can import them.
        modules: see `digests_of_modules`.
        decimals: how the service computes with decimals.
        noted: values of globals that the flow's functions name; see `globals_of`.
    """

    digest: str
    blob: bytes
    modules: Mapping[str, str] = field(default_factory=dict)
    decimals: decimal.Context = field(default_factory=decimal.getcontext)
    noted: Noted = field(default_factory=dict)

    @classmethod
    def of(cls, flow: CompiledFlow) -> PackedFlow:
        """Pack a flow.

        Raises:
            ConfigurationError: something in it cannot be sent.
        """
        try:
            buffer = io.BytesIO()
            pickler = _FlowPickler(buffer)
            pickler.dump((flow, list(filter(_can_be_sent, classes_of_script()))))
        except Exception as error:
            raise ConfigurationError(
                f"flow {flow.name!r} cannot be sent to the processes that run its tasks: {type(error).__name__}: {error}. Its functions "
                "must not hold connections, locks, open files or a Spark session; open them inside the function"
            ) from error
        blob = buffer.getvalue()
        modules = digests_of_modules()
        decimals = decimal.getcontext().copy()
        decimals.clear_flags()
        noted = globals_of(pickler.functions)
        digest = blake2b(blob + repr((modules, decimals, noted)).encode(), digest_size=16).hexdigest()
        return cls(digest, blob, modules, decimals, noted)

    def unpack(self, *, same_globals: bool = True) -> CompiledFlow:
        """The flow; unpacked once per process.

        Args:
            same_globals: whether globals have to be what they are in the service.

        Raises:
            ConfigurationError: a module is missing on this worker, or it or a global of it is not what it is in the service.
        """
        flow: CompiledFlow | None = _unpacked.get(self.digest)
        if flow is None:
            try:
                flow, python_types = cloudpickle.loads(self.blob)
            except ImportError as error:
                check_modules(self.modules)
                raise ConfigurationError(
                    f"a worker cannot import what the flow needs: {error}. Packages that are installed on the driver "
                    "must be installed on the workers too, in the same versions"
                ) from error
            except AttributeError:  # a module that has changed may have lost a function
                check_modules(self.modules)
                raise
            check_modules(self.modules)
            if same_globals:
                check_globals(self.noted)
            make_known(python_types)
            decimal.setcontext(self.decimals.copy())  # after imports, which may set another one
            _unpacked.clear()  # keep only the newest
            _unpacked[self.digest] = flow
        return flow


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process needs to run tasks of a flow.

    Attributes:
        packed: the flow.
        log: where to read and publish.
        stores: store name -> store, for the flow's stages.
    """

    packed: PackedFlow
    log: Log
    stores: Mapping[str, StateStore]

    @classmethod
    def of(cls, flow: CompiledFlow, log: Log, stores: Mapping[str, StateStore]) -> Setup:
        """Pack a flow, and those stores that it uses.

        Raises:
            ConfigurationError: the flow cannot be sent.
        """
        names = {stage.store or "" for stage in flow.stages}
        used = {name: store for name, store in stores.items() if name in names}
        return cls(PackedFlow.of(flow), log, used)

    @property
    def flow(self) -> CompiledFlow:
        """The flow; unpacked once per process."""
        return self.packed.unpack()

    def store(self, stage: StageNode) -> StateStore:
        """The store of a stage."""
        return self.stores[stage.store or ""]


class _FlowPickler(cloudpickle.CloudPickler):  # type: ignore[misc] # published without types
    """Cloudpickle that can also pickle protobuf types and structs.

    The module name in a generated class comes from the path that protoc was given. It is seldom the name under which the class is
    imported, and by value it cannot be pickled. So it is pickled as the name of its module, or else as its .proto file.

    Attributes:
        functions: functions, wrappers of functions and classes that it has met.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.functions: list[object] = []

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - any object can be pickled
        if isinstance(obj, FunctionType | type) or is_wrapper(obj):
            self.functions.append(obj)
        if isinstance(obj, type) and issubclass(obj, Message) and obj is not Message:
            file: Any = obj.DESCRIPTOR.file
            module = _module_of(file)
            files = () if module else tuple(_with_imports(file))
            return _message_type, (obj.DESCRIPTOR.full_name, module, files)
        if isinstance(obj, MadeClass) and obj.made_by:
            return obj.made_by
        if getattr(obj, "__module__", "") == "__main__" and "msgspec" in sys.modules:
            from sqe_chain.codecs.struct_pickle import is_struct, reduce_struct  # noqa: PLC0415 - it needs msgspec

            if is_struct(obj):
                return reduce_struct(obj)
        reduced = super().reducer_override(obj)
        return _without_cache(reduced) if isinstance(obj, type) and isinstance(reduced, tuple) else reduced


def _without_cache(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """How a class is pickled by value, without what msgspec has noted in it: that is stored in C, and made again by each process."""
    if len(reduced) > _STATE and isinstance(state := reduced[_STATE], tuple):
        kept = tuple(
            {name: value for name, value in part.items() if name != "__msgspec_cache__"}
            if isinstance(part, dict)
            else part
            for part in state
        )
        return (*reduced[:_STATE], kept, *reduced[_STATE + 1 :])
    return reduced


def _can_be_sent(python_type: type) -> bool:
    """Whether a class can be pickled: those of the script that no flow uses may hold anything."""
    try:
        _FlowPickler(io.BytesIO()).dump(python_type)
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
