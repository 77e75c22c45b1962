from .group_arms import UnsharedFolder as UnsharedFolder
from .group_folder import forget_group as forget_group
from .group_folder import group_id as group_id
from .group_member import GroupMember as GroupMember
from .group_member import GroupTask as GroupTask
from .kafka_ports import opened_group_ports as opened_group_ports
