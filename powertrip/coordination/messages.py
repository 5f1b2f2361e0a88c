"""What the coordinator and the sites tell each other.

The coordinator speaks to all sites at once through one ordered log (`Probe`, `Begin`, `Commit`,
`Stop`); sites speak to the coordinator through its inbox (`Ready`, `Probed`, `Report`,
`StopRequest`, `Failure`, `Finished`). What belongs to a generation or a round carries its number.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from powertrip.errors import PowerTripError


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def encode(self) -> bytes:
        """The message as UTF-8 JSON."""
        return self.model_dump_json().encode()


class Transfer(Message):
    """One site gives another the current model and outer state."""

    donor: int
    newcomer: int


class Probe(Message):
    """From here on every site measures its links to the others, at once and then at intervals."""

    kind: Literal["probe"] = "probe"
    endpoints: tuple[str | None, ...]
    """Where each site answers, in the order of the sites; null where one does not."""


class Begin(Message):
    """A new generation: who trains from which round on, and on what terms.

    It holds until another one does.
    """

    kind: Literal["begin"] = "begin"
    generation: int
    members: tuple[int, ...]
    steps: tuple[int, ...] | None
    """Local steps per member, in order; null where the members have deadlines."""
    deadline_s: tuple[float, ...] | None
    """Seconds after the round's start at which each member's local training ends."""
    half: tuple[int, ...] = ()
    """Half of the members, whose mean update is tried beside that of all; empty for no trial."""
    first_round: int
    transfers: tuple[Transfer, ...]
    clock_s: float
    """The training clock: at the moment of publication, or, where it is modelled, at the beginning
    of the first round."""


class Commit(Message):
    """Round `round` is part of the run: its members may enter the next exchange."""

    kind: Literal["commit"] = "commit"
    generation: int
    round: int
    begin: Begin | None = None
    """The generation that begins with round `round + 2`, where another one does: whoever has read
    this commit knows what the next two rounds are."""


class Stop(Message):
    """The run ends when round `after_round` is done; whatever was begun beyond it is dropped."""

    kind: Literal["stop"] = "stop"
    after_round: int
    keeper: int | None
    """The site that saves the model; null when there is nothing to save."""
    checkpoint: str
    """The file that it saves it to."""


class Ready(Message):
    """A site has built its model and follows the log."""

    kind: Literal["ready"] = "ready"
    site: int
    samples: int
    steps: int
    """Local steps of one round by the training settings."""
    update_bytes: int
    digest: str
    backend: str
    probe: str | None = None
    """Where it answers the others' measurements; null where it takes no part in them."""


class Probed(Message):
    """One site's measurement of its links; null for what it could not measure."""

    kind: Literal["probed"] = "probed"
    site: int
    number: int
    """How many measurements it has made, this one included."""
    rtt_s: tuple[float | None, ...]
    """Round-trip times in the order of the sites."""
    bandwidth: tuple[float | None, ...]
    """Bytes per second from this site, in the order of the sites."""


class Tally(Message):
    """One member's share of an evaluation."""

    correct: float
    loss_sum: float
    count: int


class Trial(Message):
    """One member's share of trying the mean of half of the last round's updates.

    The losses are those of the model at the start of that round, and of what the mean of all
    updates, of one half and of the other would have made of it.
    """

    part: float
    """Mean number of updates in a half."""
    before: Tally
    all: Tally
    half_a: Tally
    half_b: Tally


class Report(Message):
    """One member's account of a round."""

    kind: Literal["report"] = "report"
    site: int
    generation: int
    round: int
    steps: int
    samples: int
    loss: float
    loss_rms: float
    """Root of the mean squared loss per sample."""
    local_s: float
    lag_s: float
    """Seconds by which local training ended after its modelled end."""
    exchange_s: float
    evaluation_s: float
    bytes_sent: int
    digest: str
    update_norm: float
    """Of the mean update."""
    layer_norms: tuple[float, ...] = ()
    """The same for each parameter of the model, from the first member alone."""
    trial: Trial | None = None
    validation: Tally | None
    test: Tally | None
    rebuild_s: float
    """Seconds of waiting for the group and the model, in a generation's first round."""
    joined_bytes: int
    """Bytes that this member received as a newcomer, in a generation's first round."""


class StopRequest(Message):
    """A process of the run was asked to stop."""

    kind: Literal["stop_request"] = "stop_request"
    site: int
    signal: int


class LinksGone(Message):
    """The emulated links have ended, and with them the sites."""

    kind: Literal["links_gone"] = "links_gone"
    text: str


class Failure(Message):
    """A site cannot go on."""

    kind: Literal["failure"] = "failure"
    site: int
    error: str
    text: str
    exit_code: int
    survives: bool = False
    """Whether the site still holds the last commit and follows the log to its end."""

    @classmethod
    def of(cls, error: PowerTripError, site: int, *, survives: bool = False) -> Self:
        """The message that tells of an error."""
        return cls(
            site=site,
            error=type(error).__name__,
            text=str(error),
            exit_code=error.exit_code,
            survives=survives,
        )


class Finished(Message):
    """A site has ended its work; its process exits next."""

    kind: Literal["finished"] = "finished"
    site: int
    checkpoint: str | None = None
    checkpoint_round: int = 0
    checkpoint_bytes: int = 0
    checkpoint_s: float = 0.0
    checkpoint_error: str | None = None


Entry = Probe | Begin | Commit | Stop
Mail = Ready | Probed | Report | StopRequest | LinksGone | Failure | Finished
