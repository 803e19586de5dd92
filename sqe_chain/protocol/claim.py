"""Step 1: one run owns a flow. From its claim on, older runs change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sqe_chain.errors import (
    RESTORE_OR_REBUILD,
    ServiceStopped,
    StoreEmpty,
    StoreInconsistent,
    Superseded,
    WeakDurability,
)
from sqe_chain.features.locations import epochs_of_locations
from sqe_chain.features.readers import check_entered
from sqe_chain.features.sinks import epochs_of_sinks
from sqe_chain.features.view_tables import check_tables, check_view_kind
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Claimed, Standby
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.layout import check_cluster
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import check_sections, never_run, read_plan
from sqe_chain.ports import Commit, Header, Home, TopicInfo, TopicPartition
from sqe_chain.task.states import Claim

Commits = Mapping[TopicPartition, Commit]
NOTHING: Mapping[str, TopicInfo] = MappingProxyType({})
FORGETS = "forgets"
"""In the owner of a claim: the flow is being forgotten, and parts of it may be gone. It stays there until nothing of the flow is
left, or a rebuild has cut over."""


def claim(
    env: Environment,
    read_commits: Callable[[], Commits],
    infos: Mapping[str, TopicInfo] = NOTHING,
    *,
    lost: bool = False,
    may_take: Callable[[Home], bool] = lambda _: False,
) -> tuple[Claim, Home]:
    """Become the run that owns the flow, as soon as no other run is alive.

    The new epoch is greater than every epoch in the store and in the group's commits. So a store that went back in time
    gives out no epoch twice.

    Args:
        env: the flow and its ports.
        read_commits: reads the group's commits from Kafka.
        infos: the inputs, as they are now; those that are absent are not looked at.
        lost: the store may have lost everything: an empty one is accepted.
        may_take: whether the flow may be taken from a run that is alive, and has left this home record. That run can seal nothing then.

    Returns:
        The claim, and the home record with it.

    Raises:
        ReadersOverlap: its input partitions were given to another run.
        StoreEmpty: Kafka holds commits of plans, the store holds no plan.
        StoreInconsistent: a newer version has written the last plan; nothing was changed.
        AnotherCluster: the store's plans were made with another Kafka cluster.
        ServiceStopped: the flow is being forgotten, or the service was asked to stop while it waited as a standby.
    """
    name = env.flow.name
    while True:  # not bounded: each further round means that another run has claimed the flow meanwhile, or the store was emptied.
        # Read commits first, then the home record: a plan is in the store before it is committed. In the other order,
        # a run that works meanwhile would look like a store that went back in time.
        commits = read_commits()
        home, _ = env.home.home(name)
        if (
            home is not None
            and home.run_id
            and not env.settings.once.takeover
            and not env.is_dead(home.owner)
        ):
            home = _stand_by(env, home, may_take)
            if home is None:
                continue  # the store was emptied while this run waited: compare with the commits again
        owner = env.role.owner
        if home is not None and is_being_forgotten(home):
            if not lost or home.number < 0:  # a rebuild needs the last plan, and nothing else
                raise ServiceStopped(
                    f"flow {env.flow.declared_name!r}: it is being forgotten, and parts of it may be gone. Expected a whole flow. Run "
                    "sqe-chain flows forget again, or keep the flow with sqe-chain rebuild"
                )
            owner = home.owner
        if not lost:
            _check_not_empty(env, home, commits)
            _check_cluster(env, home, infos)
        # The largest of all that were ever stamped. A home record restored from a backup must not give out an epoch again.
        # The store would take this run and the one that had the epoch before for the same.
        epochs = [home.epoch if home else 0]
        epochs += [header.epoch for header in read_headers(env, _stored_in(env, home)).values() if header]
        epochs += [*epochs_of_locations(env), *epochs_of_sinks(env)]
        epochs += [int(str(parse_metadata(commit).get("epoch", 0))) for commit in commits.values()]
        mine = Claim(max(epochs) + 1, env.new_run_id())
        number, plan_id = (home.number, home.plan_id) if home else (-1, "")
        wanted = Home(mine.epoch, mine.run_id, owner, number, plan_id)
        # Of two runs that got here with the same home record one wins; the other begins again, and waits as a standby.
        if env.home.set_home(name, home, wanted) == wanted:
            check_entered(env)
            env.emit(Claimed(mine.epoch, mine.run_id, number))
            return mine, wanted


def is_being_forgotten(home: Home) -> bool:
    """Whether a process has begun to forget the flow, and has not finished."""
    try:
        owner = json.loads(home.owner)
    except ValueError:
        return False
    return isinstance(owner, dict) and FORGETS in owner


def check_has_run(env: Environment, commits: Commits) -> None:
    """Check that there is something to work on, before a claim makes a home record where there was none.

    Args:
        env: the flow and its ports.
        commits: the group's, if the store may have lost everything.

    Raises:
        ConfigurationError: neither the store nor the group knows the flow.
    """
    home, _ = env.home.home(env.flow.name)
    if home is None and not any("plan" in parse_metadata(commit) for commit in commits.values()):
        raise never_run(env.flow.name)


def stamp(env: Environment, mine: Claim, last: Plan) -> dict[tuple[int, int], Header]:
    """Write the claim into every header, before any state is read: from then on the store refuses older runs.

    A header that is absent is created. That is legal only while its stage's birth plan is the last plan.

    Returns:
        (stage index, cell) -> header, for the stages that the last plan knows.

    Raises:
        Superseded: a newer run has stamped a header.
        StoreInconsistent: a header is missing, though its stage is older than the last plan; or its states are.
    """
    stamped: dict[tuple[int, int], Header] = {}
    # A stage that is created with the last plan starts at the plan before it, like the other stages. Then the last plan
    # is redone for all of them alike.
    number, plan_id = (last.number - 1, last.previous_id) if last.previous_id else (last.number, last.plan_id)
    first = Header(mine.epoch, mine.run_id, number, plan_id)
    stored_in = last.layout.stored_in()
    headers = read_headers(env, stored_in)

    def write(cell: tuple[StageNode, int]) -> None:
        stage, part = cell
        birth = last.layout.stages[stage.name].birth
        header = headers[stage.index, part]
        where = f"{stored_in[stage.name]}/{stage.name}/{part}"
        if header is not None:
            header.check_whole(where)
        # Not bounded: each further round means that another run has stamped this header in between.
        while True:
            if header is None and birth != last.number:
                raise StoreInconsistent(
                    f"{where}: the store has no header, though plan {birth} created the stage and the last plan is "
                    f"{last.number}. This state partition was lost; {RESTORE_OR_REBUILD}"
                )
            if header is not None and header.epoch >= mine.epoch and header.run_id != mine.run_id:
                raise Superseded(
                    f"{where}: run {header.run_id} has epoch {header.epoch}, this one {mine.epoch}"
                )
            wanted = replace(header, epoch=mine.epoch, run_id=mine.run_id) if header else first
            store = env.ports.store(stage)
            # No rows, only the header: a write of an older run, even one already on its way, no longer finds its own.
            stored = store.write(stored_in[stage.name], stage.name, part, header, wanted, ())
            if stored == wanted:
                stamped[stage.index, part] = wanted
                return
            header = stored

    known = [(stage, part) for stage, part in env.flow.all_cells if stage.name in stored_in]
    env.for_each("write the claim into headers", known[::-1], write)
    return stamped


def beat(env: Environment, mine: Claim | None) -> bool:
    """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
    return mine is None or env.ports.home.beat(env.flow.name, mine.epoch, mine.run_id)


def release(env: Environment, mine: Claim) -> None:
    """Give the claim back, so that the next run need not wait.

    Does not retry: a service that ends must not wait for a store that is away. If the claim is not given back, the
    next run waits until this one's heartbeat has stopped.
    """
    store = env.ports.home
    home, _ = store.home(env.flow.name)
    if home is not None and (home.epoch, home.run_id) == (mine.epoch, mine.run_id):
        owner = home.owner if is_being_forgotten(home) else ""
        store.set_home(env.flow.name, home, replace(home, run_id="", owner=owner))


def check_claim(env: Environment, mine: Claim) -> None:
    """Check that no newer run has claimed the flow. Call it after a record was read that is about to be replaced, not before.

    If the claim was valid when the record was read, a newer run can only write the record after that. The
    compare-and-set that follows then fails. A check before the record is read proves nothing: what is read may be the newer run's.

    Raises:
        Superseded: a newer run has claimed it.
    """
    home, _ = env.home.home(env.flow.name)
    if home is None or (home.epoch, home.run_id) != (mine.epoch, mine.run_id):
        run = "no run" if home is None else f"run {home.run_id or '(ended)'}"
        raise Superseded(
            f"flow {env.flow.name!r}: {run} has claimed it; this one, {mine.run_id}, changes nothing more"
        )


def check_not_superseded(env: Environment, mine: Claim | None, cause: Exception) -> None:
    """Look whether a newer run owns the flow: its work looks to this run like a store that went back in time.

    Raises:
        Superseded: a newer run does.
    """
    home, _ = env.home.home(env.flow.name)
    if mine is not None and home is not None and home.epoch > mine.epoch:
        raise Superseded(
            f"flow {env.flow.name!r}: run {home.run_id or '(ended)'} has claimed it with epoch {home.epoch}, this one had "
            f"{mine.epoch}"
        ) from cause


def read_headers(env: Environment, stored_in: Mapping[str, str]) -> dict[tuple[int, int], Header | None]:
    """The headers of all stages, as they are at this moment. Reading them disturbs nobody.

    Args:
        env: the flow and its ports.
        stored_in: stage -> name of the flow under which its states are stored.
    """
    by_cell: dict[tuple[int, int], Header | None] = {}
    for stage in env.flow.stages:
        store, cells = env.store(stage), env.flow.cells[stage.index]
        headers = store.headers(stored_in.get(stage.name, env.flow.name), stage.name, cells)
        by_cell.update({(stage.index, cell): header for cell, header in zip(cells, headers, strict=True)})
    return by_cell


def _stored_in(env: Environment, home: Home | None) -> dict[str, str]:
    """Stage -> name of the flow under which its states are stored, according to the last plan, which must be readable."""
    plan = home and read_plan(env.home, env.flow.name, home.number)
    if not plan:
        return {}
    check_sections(plan)
    return plan.layout.stored_in()


def _check_not_empty(env: Environment, home: Home | None, commits: Commits) -> None:
    if home is not None and home.number >= 0:
        return
    for (topic, partition), commit in commits.items():
        if "plan" in parse_metadata(commit):
            raise StoreEmpty(
                f"flow {env.flow.name!r}: the store knows nothing of it, but its group has committed offset "
                f"{commit.offset} of {topic}[{partition}] with plan {parse_metadata(commit)['plan']}. The store was emptied, "
                "or this is another store. Give the right --store, restore it, or fold the states again with sqe-chain rebuild"
            )


def _check_cluster(env: Environment, home: Home | None, infos: Mapping[str, TopicInfo]) -> None:
    plan = home and read_plan(env.home, env.flow.name, home.number)
    if plan:
        check_cluster(env.flow, plan.layout, infos, by_ids=Mirrors.name not in plan.sections)


def _stand_by(env: Environment, home: Home, may_take: Callable[[Home], bool]) -> Home | None:
    """Wait until the run that holds the claim has released it, its heartbeat has stopped, or it may be taken from it.

    Clocks of two machines are never compared: what counts is whether heartbeat or plans move while this run waits.

    Returns:
        The home record as it was last seen. The caller's claim is compared with it, so of two standbys one wins, and the
        other waits for the winner.
    """
    name, waited, step_ms = env.flow.name, 0, 200
    env.emit(Standby(home.epoch, home.owner, _holder(home)))
    _, last_beat = env.home.home(name)
    while waited < env.settings.standby_ms:  # not bounded: as long as the other run lives
        if env.clock.wait(step_ms):
            raise ServiceStopped(
                f"flow {name!r}: asked to stop while run {home.run_id} was alive; nothing was done"
            )
        waited += step_ms
        now, beat = env.home.home(name)
        if now is None or now.run_id == "" or env.is_dead(now.owner) or may_take(now):
            return now
        if (now, beat) != (home, last_beat):  # it lives
            home, last_beat, waited = now, beat, 0
    return home


def _holder(home: Home) -> str:
    """Who holds a claim, as people name it: the owner's text is what `Role` was given, and may be of another version."""
    try:
        owner = json.loads(home.owner)
        where = f" (host {owner['host']}, process {owner['pid']})"
    except (ValueError, TypeError, KeyError):
        where = ""
    return f"run {home.run_id}{where} has the flow: wait until it ends, or stop it and its standbys"


def check_stores(env: Environment) -> list[str]:
    """Check that all stores and tables of the flow keep what they acknowledge, and that stores can write the views of their stages.

    Returns:
        What is weak and accepted, and what is worth knowing: reported once, when the flow begins.

    Raises:
        WeakDurability: one may lose acknowledged writes, and that is not accepted.
        ConfigurationError: a stage names a store that is not there, or one that cannot write its view; or the table of a view is
            not there.
    """
    for stage in env.flow.stages:
        check_view_kind(stage, env.ports.store(stage))
    check_tables(env)
    stores = {stage.store or "": env.store(stage) for stage in env.flow.stages} | {"": env.home}
    said = []
    for name, store in sorted(stores.items()):
        said += _checked(env, f"store {name or 'default'!r}", store.check(), store.remarks())
    for stage in env.flow.stages:
        sink = env.ports.sink(stage)
        if sink is not None:
            weak = env.retry.call("check a table", sink.check)
            remarks = env.retry.call("check a table", sink.remarks)
            said += _checked(env, f"the table of stage {stage.name!r}", weak, remarks)
    return said


def _checked(env: Environment, what: str, weak: Sequence[str], remarks: Sequence[str]) -> list[str]:
    """What is known of the durability of a store or table; what is weak is refused, unless that is accepted."""
    if weak and not env.settings.allow_weak_durability:
        raise WeakDurability(
            f"{what} may lose acknowledged writes: {'; '.join(weak)}. Change that, or accept it with --allow-weak-durability"
        )
    return [*(f"weak durability accepted: {text}" for text in weak), *remarks]


def check_commits(flow: CompiledFlow, last: Plan, commits: Mapping[TopicPartition, Commit]) -> None:
    """Check that no commit names a later plan than the metadata store's last: a plan is committed after it was sealed.

    Raises:
        StoreInconsistent: a commit names a later plan, or another one.
    """
    for commit in commits.values():
        meta = parse_metadata(commit)
        if "plan" not in meta:
            continue
        number = int(str(meta["plan"]))
        other = number == last.number and meta.get("id") != last.plan_id
        if number > last.number or other:
            raise StoreInconsistent(
                f"flow {flow.name!r}: the metadata store's last plan is {last.number} ({last.plan_id}), but Kafka "
                f"has a commit of plan {meta['plan']} ({meta.get('id')}). The store went back as a whole. Its values are "
                "exact for an earlier moment. --accept-rollback goes on from there, but what was published since may "
                "differ from what is published now"
            )
