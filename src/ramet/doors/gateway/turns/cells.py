"""The cells of one turn: their container, the cell that continues from an earlier request, and the outcome of each."""

from __future__ import annotations

from contextlib import ExitStack

from ramet.doors.gateway.containers.container import Container
from ramet.doors.gateway.containers.refusals import ContainerBusy, ContainerExpired
from ramet.doors.gateway.kinds import AnyBlock
from ramet.doors.gateway.requests.request import MessagesRequest
from ramet.doors.gateway.running.answers import ClientToolAnswer
from ramet.doors.gateway.running.blocks import ErrorCode, execution_error, tool_result
from ramet.doors.gateway.running.cell_run import CellRequest, CellRun, Finished, Waiting
from ramet.doors.gateway.services import Services
from ramet.doors.gateway.turns.message_builder import ContainerShown
from ramet.doors.gateway.upstream.cell_texts import CellTexts

_DEFAULT_VERSION = "20260120"
_CHARACTERS_PER_TOKEN = 4
# In one answer: a model that makes many calls in one sample must not run for hours and fill the memory with results.
_CELLS_AT_MOST = 100
_NEW_CONTAINER = (
    "[this is a new container: variables and files of the earlier calls are gone, because their container has expired "
    "or was made by another gateway]\n"
)


def tokens_kept_out(request: MessagesRequest) -> int:
    """An estimate of the tokens that the model need not read, of the results that this request brings for code."""
    answers = [ClientToolAnswer.read(one.content, one.is_error) for one in request.calls.answers]
    return sum(len(answer.text) for answer in answers if not answer.is_error) // _CHARACTERS_PER_TOKEN


class TurnCells:
    """Owns the turn's use of the container; the container itself outlives the turn."""

    def __init__(self, services: Services, request: MessagesRequest, owner: str, texts: CellTexts) -> None:
        self._services = services
        self.request = request
        self._owner = owner
        self._texts = texts
        self._container: Container | None = None
        self._stack: ExitStack | None = None
        self._run: CellRun | None = None
        self._after: frozenset[str] | None = None
        self._prepared = False
        self._turn_begins = request.begins_turn
        self._begun = 0

    @property
    def container_id(self) -> str | None:
        return None if self._container is None else self._container.id

    @property
    def container_shown(self) -> ContainerShown | None:
        container = self._container
        return None if container is None else ContainerShown(container.id, container.expires_at)

    async def prepare(self, stack: ExitStack) -> None:
        """Open the container, copy the client's files into it, and pass the client's results to its code.

        ``stack`` is closed when the turn ends; the container is in use until then.
        """
        self._stack = stack
        if self._container is not None:
            stack.enter_context(self._container.in_use())
        if self._prepared:
            return
        request = self.request
        uploads = request.uploads if request.tools.version is not None else []
        container_id = request.container_id or self._container_of_history()
        if container_id is not None or uploads:
            container = self._container or await self._open(container_id)
            if uploads:
                try:
                    paths = await container.upload(uploads)
                except ContainerExpired as error:
                    container = await self._instead(error)
                    paths = await container.upload(uploads)
                self._texts.uploaded(dict(zip(uploads, paths, strict=True)))
            if request.calls.answers:
                self._take_answers(container)
        self._prepared = True

    async def outcome(self, cell: AnyBlock) -> Waiting | Finished:
        """Run a cell, or continue it, until it waits for the client or has ended."""
        if self._run is None and cell.get("id") == self.request.calls.waiting_cell:
            outcome: Waiting | Finished = _failed(cell, "unavailable", "the code that made these calls is gone")
        else:
            outcome = await self._carried_out(cell)
        if isinstance(outcome, Waiting):
            self._services.watch(self._run)
        else:
            self._run, self._after = None, None
            self._texts.cell_ended(str(cell.get("id")), outcome.model_text)
        return outcome

    def give_up(self) -> None:
        """Abandon the cell that runs. Code that waits for a client keeps waiting, because the client may come back."""
        run = self._run
        if run is not None and not run.ended and not run.waiting:
            self._services.spawn(run.abandon(), "abandon")

    async def _carried_out(self, cell: AnyBlock) -> Waiting | Finished:
        container = self._container or await self._open(None)
        if self._run is None:
            self._begun += 1
            if self._begun > _CELLS_AT_MOST:
                return _failed(cell, "too_many_requests", f"at most {_CELLS_AT_MOST} calls are executed for one answer")
            try:
                try:
                    self._run = await self._begin(container, cell)
                except ContainerExpired as error:
                    self._run = await self._begin(await self._instead(error), cell)
            except ContainerBusy as error:
                # Another conversation in this container waits for its client. This one can go on without its cell.
                return _failed(cell, "too_many_requests", error.message)
        return await self._run.next(self._after)

    async def _begin(self, container: Container, cell: AnyBlock) -> CellRun:
        pending = container.pending
        if pending is not None and pending.request.tool_use_id == cell.get("id"):
            return pending  # an answer broke off, and the client repeats the part of it that it got
        found = cell.get("input")
        request = CellRequest(
            tool_use_id=str(cell.get("id")),
            name=str(cell.get("name")),
            input=found if isinstance(found, dict) else {},
            version=self.request.tools.version or _DEFAULT_VERSION,
        )
        # Only at the beginning of a turn: within one, the model knows that its code has used a tool's name for a
        # variable.
        anew, self._turn_begins = self._turn_begins, False
        return await container.start(request, self.request.tools.callables, tools_anew=anew)

    def _container_of_history(self) -> str | None:
        """The container in which the code of the history ran, for a client that does not name it."""
        request = self.request
        if request.tools.version is None or not (cell_ids := request.last_cell_ids):
            return None
        return self._services.rooms.containers.find_by_cells(self._owner, cell_ids)

    async def _open(self, container_id: str | None) -> Container:
        notice = _NEW_CONTAINER if container_id is None and self.request.has_run_code else ""
        container = await self._services.rooms.containers.open(self._owner, container_id, notice)
        self._container = container
        assert self._stack is not None
        self._stack.enter_context(container.in_use())
        return container

    async def _instead(self, error: ContainerExpired) -> Container:
        """A new container in place of a lost one, unless the client has named the lost one."""
        if self.request.container_id is not None or not self.request.has_run_code:
            raise error
        return await self._open(None)

    def _take_answers(self, container: Container) -> None:
        calls = self.request.calls
        run = container.run_of(calls.answered_ids)
        if run is None or run.request.tool_use_id != calls.waiting_cell:
            return
        fresh = not calls.answered_ids <= run.answered.keys()
        for answer in calls.answers:
            run.answer(answer.tool_use_id, answer.content, answer.is_error)
        self._run, self._after = run, calls.answered_ids
        if fresh:
            self._services.metrics.kept_out(tokens_kept_out(self.request))


def _failed(cell: AnyBlock, error_code: ErrorCode, message: str) -> Finished:
    name, own_id = str(cell.get("name")), str(cell.get("id"))
    block = tool_result(name, own_id, execution_error(name, error_code, message))
    return Finished(block, f"error: {error_code}: {message}")
