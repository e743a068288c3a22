"""Tasks: what a server program may ask of a client, and the shape of the answers.

A task is a function whose first parameter is the client; its other parameters are the fields of the request and its
return type the fields of the reply. Both are checked on arrival, so a site never runs a task on something else.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedsynth.errors import FedsynthError, UserError, nearest
from fedsynth.federation.payload import Fields

if TYPE_CHECKING:
    from fedsynth.federation.trials import TrialMaker

TASKS: "dict[str, Task]" = {}
RAW = "raw"


class TaskError(FedsynthError):
    """A task that is not known, or fields that do not fit it."""


class Message(BaseModel, arbitrary_types_allowed=True, frozen=True, extra="forbid"):
    """Base of what stands in requests and replies: typed fields, tensors among them, checked on arrival."""


class Reply(Message):
    """Base of what a task returns. Every field says, in its description, what leaves the client."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if not field.description:
                raise TaskError(f"{cls.__name__}.{name} must say what leaves the client: use leaves('…').")

    def fields(self) -> Fields:
        """The fields by name, as they are (no copies)."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class Done(Reply):
    """The reply of a task that sends nothing back."""


def leaves(what: str, *, raw: bool = False, **options: Any) -> Any:
    """Declare a field of a reply: `what` tells, in plain words, what leaves the client in it.

    `raw`: it holds records of the client as they are, or means of a few. A site keeps that unless its policy says so.
    """
    return Field(description=what, json_schema_extra={RAW: raw}, **options)


class Task:
    """A registered client task. Calling it runs the function directly, which is handy in tests."""

    def __init__(self, function: Callable[..., Reply]) -> None:
        self.function = function
        self.name = qualified_name(function)
        self.make_trials: TrialMaker | None = None  # how what it claims is put to the test
        hints = typing.get_type_hints(function, include_extras=True)
        self.reply_type: type[Reply] = hints.pop("return", Reply)
        if not (isinstance(self.reply_type, type) and issubclass(self.reply_type, Reply)):
            raise TaskError(f'The task "{self.name}" must be annotated to return a subclass of Reply.')
        parameters = list(inspect.signature(function).parameters.values())[1:]
        fields: Fields = {
            p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in parameters
        }
        config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
        self.request_type: type[BaseModel] = create_model(f"{function.__name__}_request", __config__=config, **fields)

    def __call__(self, *args: Any, **kwargs: Any) -> Reply:
        return self.function(*args, **kwargs)

    def trial(self, maker: "TrialMaker") -> "TrialMaker":
        """Declare how an audit tests what this task claims; see `trials.py`."""
        self.make_trials = maker
        return maker

    def run(self, client: Any, fields: Mapping[str, Any]) -> Reply:
        """Check the fields of a request and run the task on them."""
        request = self.read_request(fields)
        return self.function(client, **{name: getattr(request, name) for name in self.request_type.model_fields})

    def read_request(self, fields: Mapping[str, Any]) -> BaseModel:
        """Check the fields of a request."""
        try:
            return self.request_type(**fields)
        except ValidationError as error:
            raise TaskError(f'The request for task "{self.name}" does not fit it: {_first(error)}.') from None
        except UserError as error:  # a value of a slot that is not known, or has other settings
            raise TaskError(f'The request for task "{self.name}" does not fit it: {error}') from None

    def read_reply(self, fields: Mapping[str, Any]) -> Reply:
        """Check the fields of a reply."""
        try:
            return self.reply_type(**fields)
        except ValidationError as error:
            raise TaskError(f'The reply to task "{self.name}" does not fit it: {_first(error)}.') from None

    def raw_fields(self) -> list[str]:
        """The fields in which records leave."""
        extras = {name: field.json_schema_extra for name, field in self.reply_type.model_fields.items()}
        return [name for name, extra in extras.items() if isinstance(extra, dict) and extra.get(RAW)]

    def leaves(self) -> dict[str, str]:
        """Field name to what leaves the client in it."""
        return {name: field.description or "" for name, field in self.reply_type.model_fields.items()}


def qualified_name(function: Callable[..., Reply]) -> str:
    """A task's name: its module, without the package and its room, and its function ("fedavg.train")."""
    parts = function.__module__.split(".")
    return ".".join([*(parts[2:] if parts[0] == "fedsynth" else parts[-1:]), function.__name__])


def task(function: Callable[..., Reply]) -> Task:
    """Register a function as a client task under its qualified name."""
    new = Task(function)
    known = TASKS.get(new.name)
    if known is not None and known.function.__module__ != function.__module__:
        raise TaskError(f'Two tasks are called "{new.name}": in {known.function.__module__} and {function.__module__}.')
    TASKS[new.name] = new
    return new


def find_task(name: str) -> Task:
    """The registered task of that name; a `TaskError` that names the nearest one otherwise."""
    if name not in TASKS:
        raise TaskError(f'There is no task "{name}".{nearest(name, TASKS)}')
    return TASKS[name]


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"])) or "fields"
    return f'"{where}": {problem["msg"].lower()}'
