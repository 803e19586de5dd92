"""Commands and options that are gone: for one version each ends with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqe_chain.errors import ConfigurationError

COMMANDS: Final[dict[tuple[str, ...], str]] = {
    ("dead-letters",): "sqe-chain failed",
    ("parked",): "sqe-chain failed",
    ("excluded",): "sqe-chain failed list",
    ("failed", "show"): "sqe-chain failed list MODULE:FLOW 'TOPIC[PARTITION]@OFFSET'",
    ("readers", "show"): "sqe-chain readers MODULE:FLOW",
    ("readers", "change"): "sqe-chain readers MODULE:FLOW --to SET",
    ("store", "check"): "sqe-chain store init URL --check",
    ("dev", "reset"): "sqe-chain dev down --delete",
    ("dev", "warm"): "python -m sqe_chain.ext.dev warm",
}
"""First words of a command that is gone -> what to use instead."""
_BATCHES: Final = ("run", "load", "rebuild", "rewind")
OPTIONS: Final[dict[tuple[str, ...], dict[str, str]]] = {
    **{(name,): {"--max-excluded-share": "--max-excluded N with a large N"} for name in _BATCHES},
    ("web",): {"--token-file": "nothing: the page only shows"},
    ("dev", "up"): {f"--{kind}-port": f"--port {kind}=PORT" for kind in ("kafka", "redis", "cassandra")},
    ("tables", "compact"): {"--least-files": "open_table(ADDRESS).compact(least_files=N) in Python"},
}
"""First words of a command -> its options that are gone -> what to use instead."""
ENVIRONMENT: Final = {
    "SQE_CHAIN_MAX_EXCLUDED_SHARE": "--max-excluded-share",
    "SQE_CHAIN_OPEN_FILES": "--open-files",
}
"""Variable that is gone -> its option."""
for _name in ("run", "load"):
    OPTIONS[(_name,)]["--open-files"] = "open_files=N of sqe_chain.run in Python"


def refuse_removed(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse a command line, or an environment, with a name that is gone.

    Args:
        arguments: those after `sqe-chain`.
        environment: of the process.

    Raises:
        ConfigurationError: there is one; the text has what to use instead.
    """
    for words, instead in COMMANDS.items():
        if tuple(arguments[: len(words)]) == words:
            raise ConfigurationError(f"sqe-chain {' '.join(words)}: this command was removed. Use {instead}")
    for words, options in OPTIONS.items():
        if tuple(arguments[: len(words)]) != words:
            continue
        given = {argument.partition("=")[0]: argument.partition("=")[0] for argument in arguments}
        given |= {option: variable for variable, option in ENVIRONMENT.items() if variable in environment}
        for option, instead in options.items():
            if option in given:
                raise ConfigurationError(
                    f"sqe-chain {' '.join(words)}: {given[option]} was removed. Use {instead}"
                )
