"""The plant and the reports of its gateways, only from a seed, so that anyone can compute the totals again.

>>> [report.gateway for report in reports(seed=7, count=3)]
['gateway-00', 'gateway-18', 'gateway-12']
>>> list(reports(seed=7, count=3)) == list(reports(seed=7, count=9))[:3]
True
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as numbers
from itertools import islice
from random import Random

from services._proto.fastening_pb2 import JointReport, RawReport, RobotReport

GATEWAYS = 24
ROBOTS_PER_GATEWAY = 10
ROBOTS = GATEWAYS * ROBOTS_PER_GATEWAY
LINES = 9
JOINTS = 6
MILLISECONDS_BETWEEN_REPORTS = 1


def gateway_name(gateway: int) -> str:
    """Key of the topic `robot.raw`."""
    return f"gateway-{gateway:02}"


def robot_name(robot: int) -> str:
    """Serial number of a robot. Robots 0, 24, 48 … are connected to gateway 0, and so on."""
    return f"robot-{robot:04}"


def line_name(robot: int) -> str:
    """Production line of a robot. Robots with adjacent numbers share a line, so a line has many gateways."""
    return f"line-{robot * LINES // ROBOTS}"


def reports(seed: int, count: int, start_ms: int = 0) -> Iterator[RawReport]:
    """The first `count` reports of the plant, in the order in which they are sent.

    Args:
        seed: the same seed gives the same reports on every machine and Python version.
        count: how many; a smaller count gives a prefix.
        start_ms: time of the first one. Nothing else depends on it.
    """
    return islice(_endless(seed, start_ms), count)


def _endless(seed: int, start_ms: int) -> Iterator[RawReport]:
    random = Random(seed)
    for number in numbers():
        bits = random.getrandbits(160)  # unlike randrange, guaranteed to stay the same in later Pythons
        bits, gateway = divmod(bits, GATEWAYS)
        bits, first = divmod(bits, ROBOTS_PER_GATEWAY)
        bits, several = divmod(bits, 4)
        robots = []
        for index in (first, first + 1) if several == 0 else (first,):
            bits, report = _robot(bits, gateway + GATEWAYS * (index % ROBOTS_PER_GATEWAY))
            robots.append(report)
        yield RawReport(
            gateway=gateway_name(gateway),
            number=number,
            timestamp_ms=start_ms + number * MILLISECONDS_BETWEEN_REPORTS,
            robots=robots,
        )


def _robot(bits: int, robot: int) -> tuple[int, RobotReport]:
    """The unused random bits, and the report of one robot."""
    bits, first = divmod(bits, JOINTS)
    bits, choice = divmod(bits, 4)
    joints = []
    for joint in range(first, first + (1, 1, 2, 3)[choice]):
        bits, fastened = divmod(bits, 8)
        bits, failed = divmod(bits, 16)
        bits, torque = divmod(bits, 4096)
        joints.append(
            JointReport(
                joint=f"a{joint % JOINTS + 1}",
                fastened=fastened + 1,
                failed=int(failed == 0),
                torque_mnm=(fastened + 1) * 2000 + torque,
            )
        )
    return bits, RobotReport(robot=robot_name(robot), line=line_name(robot), joints=joints)
