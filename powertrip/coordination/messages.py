"""What the coordinator and the sites tell each other.

The coordinator speaks to all sites at once through one ordered log (`Probe`, `Begin`, `Commit`,
`Recall`, `Hurry`, `Stop`); sites speak to the coordinator through its inbox (`Ready`, `Probed`,
`Report`, `Broken`, `StopRequest`, `Failure`, `Saved`, `Finished`), and so do those who watch over
them (`LinksGone`, `Gone`, `Back`). What belongs to a generation or a round carries its number.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from powertrip.errors import InputError, PowerTripError
from powertrip.training.errors import TrainingDiverged

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A whole number that numpy and JSON can hold."""
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Of a site, a process, a round or a generation."""
Seconds = Annotated[float, Field(ge=0, le=1e12)]
"""A measured time: a number, and none that overflows when it is added to others."""


class Message(BaseModel):
    """Base of all messages.

    A measure of the model (a loss, a norm) may be infinite or no number; it is written as a text,
    as JSON has no such numbers, and read back.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    def encode(self) -> bytes:
        """The message as UTF-8 JSON."""
        return self.model_dump_json().encode()


class Transfer(Message):
    """One site gives another the current model and outer state."""

    donor: Number
    newcomer: Number


class Probe(Message):
    """From here on every site measures its links to the others, at once and then at intervals."""

    kind: Literal["probe"] = "probe"
    endpoints: tuple[str | None, ...]
    """Where each site answers, in the order of the sites; null where one does not."""


class Save(Message):
    """The state after a round is to be saved, in a folder that exists."""

    folder: str
    round: Number
    keeper: Number
    """The site that saves the model; every site saves what it remembers for itself."""


class Begin(Message):
    """A new generation: who trains from which round on, and on what terms.

    It holds until another one does.
    """

    kind: Literal["begin"] = "begin"
    generation: Number
    members: tuple[Number, ...]
    steps: tuple[Count, ...] | None
    """Local steps per member, in order; null where the members have deadlines."""
    deadline_s: tuple[float, ...] | None
    """Seconds after the round's start at which each member's local training ends."""
    half: tuple[Number, ...] = ()
    """Half of the members, whose mean update is tried beside that of all; empty for no trial."""
    first_round: Number
    transfers: tuple[Transfer, ...]
    limit_s: float | None = None
    """Seconds from a round's start by which its exchange is given up; null for the ceiling,
    `exchange.timeout_s`, as in the next one."""
    join_limit_s: float | None = None
    """Seconds by which the group and the model must be there."""
    redo: bool = False
    """Whether `first_round` is done again: who is ahead of the commit before it goes back to that,
    and whoever has trained `first_round` already exchanges that update once more."""
    standby: Number | None = None
    """The generation whose standby group the members go on with; null where they build one."""
    rounds: Number = 1
    """Rounds that it holds for at least: so many the members do without the coordinator."""
    following: Begin | None = None
    """The generation that begins with round `first_round + 1`, where it is decided already."""
    clock_s: float
    """The training clock: at the moment of publication, or, where it is modelled, at the beginning
    of the first round."""


class Commit(Message):
    """Round `round` is part of the run: its members may enter the next exchange."""

    kind: Literal["commit"] = "commit"
    generation: Number
    round: Number
    begin: Begin | None = None
    """The generation that begins with round `round + 2`, where another one does: whoever has read
    this commit knows what the next two rounds are."""
    limit_s: float | None = None
    """As in `Begin`, as it is known by now."""
    save: Save | None = None
    """Asks for a checkpoint of this commit."""


class Recall(Message):
    """Another process of the coordinator asks who is there, and what it has not taken in."""

    kind: Literal["recall"] = "recall"
    term: Number
    """How many processes the coordinator has had before."""


class Hurry(Message):
    """The run is to end with the round that is being done: local training is cut short."""

    kind: Literal["hurry"] = "hurry"


class Stop(Message):
    """The run has ended with round `after_round`; whatever was begun beyond it is dropped."""

    kind: Literal["stop"] = "stop"
    after_round: Number
    save: Save | None
    """Asks for a checkpoint of that round; null when there is nothing to save."""


class Ready(Message):
    """A site has built its model and follows the log."""

    kind: Literal["ready"] = "ready"
    site: Number
    samples: Count
    steps: Count
    """Local steps of one round by the training settings."""
    update_bytes: Count
    digest: str
    round: Number = 0
    """The last round that is in its model."""
    backend: str
    incarnation: Number = 0
    """How many processes this site has had before."""
    probe: str | None = None
    """Where it answers the others' measurements; null where it takes no part in them."""


class Probed(Message):
    """One site's measurement of its links; null for what it could not measure."""

    kind: Literal["probed"] = "probed"
    site: Number
    number: Number
    """How many measurements it has made, this one included."""
    rtt_s: tuple[float | None, ...]
    """Round-trip times in the order of the sites."""
    bandwidth: tuple[float | None, ...]
    """Bytes per second from this site, in the order of the sites."""


class Tally(Message):
    """One member's share of an evaluation."""

    correct: float
    loss_sum: float
    count: Count


class Trial(Message):
    """One member's share of trying the mean of half of the last round's updates.

    The losses are those of the model at the start of that round, and of what the mean of all
    updates, of one half and of the other would have made of it.
    """

    part: Annotated[float, Field(gt=0, le=2**31)]
    """Mean number of updates in a half."""
    before: Tally
    all: Tally
    half_a: Tally
    half_b: Tally


class Report(Message):
    """One member's account of a round."""

    kind: Literal["report"] = "report"
    site: Number
    generation: Number
    round: Number
    steps: Count
    samples: Count
    loss: float
    loss_rms: float
    """Root of the mean squared loss per sample."""
    local_s: Seconds
    lag_s: Seconds
    """Seconds by which local training ended after its modelled end."""
    exchange_s: Seconds
    evaluation_s: Seconds
    bytes_sent: Count
    digest: str
    update_norm: float
    """Of the mean update."""
    layer_norms: tuple[float, ...] = ()
    """The same for each parameter of the model, from the first member alone."""
    trial: Trial | None = None
    validation: Tally | None
    test: Tally | None
    rebuild_s: Seconds
    """Seconds of waiting for the group and the model, in a generation's first round."""
    joined_bytes: Count
    """Bytes that this member received as a newcomer, in a generation's first round."""
    standby: Number | None = None
    """The generation of its standby group, where one is ready."""
    rejected: str | None = None
    """Why its update had no weight; null where it had."""


class Broken(Message):
    """A member's exchange has failed; it still holds the last commit, and its own update."""

    kind: Literal["broken"] = "broken"
    site: Number
    generation: Number
    round: Number
    awaited: Number | None = None
    """The site that it waited for in vain; null where it does not know."""
    adds: bool = False
    """Whether that site kept back its own addend, and did not wait for another's itself."""
    digest: str | None = None
    """Of the model after the round before; null where it does not hold that."""
    text: str


class StopRequest(Message):
    """A process of the run was asked to stop."""

    kind: Literal["stop_request"] = "stop_request"
    site: Number
    signal: int


class LinksGone(Message):
    """The emulated links have ended, and with them the sites."""

    kind: Literal["links_gone"] = "links_gone"
    text: str


class Failure(Message):
    """A site cannot go on."""

    kind: Literal["failure"] = "failure"
    site: Number
    error: str
    text: str
    exit_code: int
    incarnation: Number = 0
    ends_run: bool = False
    """Whether the others are of no use either: the scenario is wrong, or the training diverges."""

    @classmethod
    def of(cls, error: PowerTripError, site: int, *, incarnation: int = 0) -> Self:
        """The message that tells of an error."""
        return cls(
            site=site,
            error=type(error).__name__,
            text=str(error),
            exit_code=error.exit_code,
            incarnation=incarnation,
            ends_run=isinstance(error, InputError | TrainingDiverged),
        )


class Finished(Message):
    """A site has ended its work; its process exits next."""

    kind: Literal["finished"] = "finished"
    site: Number


class SavedFile(Message):
    """A file of a checkpoint."""

    name: str
    bytes: Count
    checksum: str


class Saved(Message):
    """A site's part of a checkpoint is on disk, or cannot be written."""

    kind: Literal["saved"] = "saved"
    site: Number
    round: Number
    files: tuple[SavedFile, ...] = ()
    seconds: Seconds = 0.0
    """Time that writing took."""
    error: str | None = None


class Gone(Message):
    """A site's process is not there any more, as far as the coordinator's process can see."""

    kind: Literal["gone"] = "gone"
    site: Number
    incarnation: Number
    """Which of the site's processes."""
    reason: Literal["closed", "silent"]
    """closed: its connection has ended, or a later process of the site has come; silent: it has not
    been heard within the limit."""


class Back(Message):
    """A process that was `Gone` is heard again."""

    kind: Literal["back"] = "back"
    site: Number
    incarnation: Number


Entry = Probe | Begin | Commit | Recall | Hurry | Stop
Mail = (
    Ready
    | Probed
    | Report
    | Broken
    | StopRequest
    | LinksGone
    | Failure
    | Saved
    | Finished
    | Gone
    | Back
)
