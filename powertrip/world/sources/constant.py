"""The same power at all times."""

from __future__ import annotations

from powertrip.world.site_settings import ConstantPower, SiteSettings
from powertrip.world.sources.base import Context, Feed, one_by_one
from powertrip.world.steps import constant


def _load(_site: SiteSettings, settings: ConstantPower, context: Context) -> Feed:
    return Feed(context.once(("constant",), lambda: constant(1.0)), settings.watts)


load_constant = one_by_one(_load)
