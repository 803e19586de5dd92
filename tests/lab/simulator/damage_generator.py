"""Random damage: what readers have to notice, and standbys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqe_chain.envelope.partitioner import partition_of
from tests.lab.simulator.fact_generator import TWO, FactGenerator
from tests.lab.simulator.schedule import Step
from tests.lab.simulator.world_generator import chance

LONG: Final = 24
"""Records of one partition that are read as columns."""


class DamageGenerator(FactGenerator):
    """Generates what happens to logs under the services that read them; see `damage` and `standby`."""

    def damage_steps(self) -> list[Step]:
        """A log loses something, a republisher changes its mind, or a run waits for another one."""
        world = self.world
        if not chance(self.damage, 0.18):
            return []
        witnessed = world.hops > 0 and world.recreated == "stop" and world.kind == ""
        # What a batch was made of is taken back: so it has to be one batch.
        whole = witnessed and not world.files and world.records > LONG
        offered: list[tuple[bool, int, Callable[[], list[Step]]]] = [
            (True, 1, self._standby),
            (True, 1, self._cut),
            (witnessed, 3, self._lose),
            (whole and world.hops == 1, 4, self._change_mind),
            (whole and world.hops == TWO, 4, self._come_back),
        ]
        weights = [weight * possible for possible, weight, _ in offered]
        (chosen,) = self.damage.choices([step for _, _, step in offered], weights)
        return chosen()

    def _standby(self) -> list[Step]:
        draw = self.damage
        ending = ["standby", draw.choice([0, 1, 2, 3]), draw.randrange(1, 30)]
        return [*self._hops(), [*ending, draw.choice(["killed", "given back"])]]

    def _cut(self) -> list[Step]:
        draw, topic = self.damage, "far" if self.world.hops else self.world.origins()[0]
        return [["settle"], ["cut", topic, draw.randrange(3), draw.choice([1, 1, 2, 9]), chance(draw, 0.6)]]

    def _lose(self) -> list[Step]:
        world, draw = self.world, self.damage
        lose: list[Step] = [["settle"], self.feed_one_lane(), *self._hops(), ["lose"]]
        if world.poison == "stop" or chance(draw, 0.3):
            return lose
        # What cannot be read may have been what is missing; perhaps with a replay of the lane after it, which proves nothing.
        rubbish = ["rubbish", "far", partition_of(b"a", world.partitions), "rubbish"]
        replay = [["rewind", f"hop{world.hops}", 3], self._hops()[-1]] if chance(draw, 0.5) else []
        excused: list[Step] = [["settle"], rubbish, *replay, *lose[1:]]
        if chance(draw, 0.5):
            excused += [["settle"], self.feed_one_lane(), *self._hops(), ["lose"]]
        return excused

    def _change_mind(self) -> list[Step]:
        read: list[Step] = [["run", "totals", 2, []]] if chance(self.damage, 0.5) else []
        fed = ["feed", "origin", [self.sound_fact(0, 3)]]
        return [["settle"], fed, *self._hops(), *read, ["change mind", self.damage.choice(["fewer", "more"])]]

    def _come_back(self) -> list[Step]:
        return [["settle"], ["come back", self.damage.choice([1, 1, 3])]]

    def _hops(self) -> list[Step]:
        return [["run", name, 1, []] for name in self.world.services() if name.startswith("hop")]
