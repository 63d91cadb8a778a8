"""All checks, in the order in which they are made. Pure."""

from typing import Final

from gpuwarden.doctor.admission import ADMISSION
from gpuwarden.doctor.check import Group
from gpuwarden.doctor.controllers import CONTROLLERS_GROUP
from gpuwarden.doctor.kubernetes import API, APIS, BEFORE, KUBERNETES, VERSION
from gpuwarden.doctor.log import LOG
from gpuwarden.doctor.nodes import LABELLED, NODES_GROUP, SHARED
from gpuwarden.doctor.policies import POLICIES_GROUP
from gpuwarden.doctor.runtime import RUNTIME_BEFORE, VARIABLES
from gpuwarden.doctor.scheduler import SCHEDULER_GROUP
from gpuwarden.doctor.spire import SPIRE, SPIRE_BEFORE

INSTALLED: Final = (
    KUBERNETES,
    CONTROLLERS_GROUP,
    SPIRE,
    NODES_GROUP,
    ADMISSION,
    SCHEDULER_GROUP,
    POLICIES_GROUP,
    LOG,
)
"""After installation."""

NOT_YET: Final = (
    Group("kubernetes", KUBERNETES.title, (API, VERSION, APIS)),
    BEFORE,
    Group("spire", SPIRE.title, (SPIRE_BEFORE,)),
    Group("nodes", NODES_GROUP.title, (LABELLED, SHARED, VARIABLES, RUNTIME_BEFORE)),
)
"""Before installation (`--pre`)."""
