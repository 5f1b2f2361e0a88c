"""Facts at a time t: the sites, their power and speed, and the links between them."""

from powertrip.world.errors import NetworkError, PlaceError, TraceError
from powertrip.world.network import Star
from powertrip.world.world import World, build_world

__all__ = ["NetworkError", "PlaceError", "Star", "TraceError", "World", "build_world"]
