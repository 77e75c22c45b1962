from .aliases import change_alias as change_alias
from .aliases import show_aliases as show_aliases
from .examples_topic import HeldTopic as HeldTopic
from .examples_topic import held_topic as held_topic
from .removal import drop_model as drop_model
