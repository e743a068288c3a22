"""What a method may use: the federation, its clients, tasks and payloads."""

# ruff: noqa: F401  (what is imported here is offered here)

from fedsynth.federation.client import Client
from fedsynth.federation.federation import Federation
from fedsynth.federation.methods import Outcome, method
from fedsynth.federation.port import Failure
from fedsynth.federation.replies import Relayed, Replies
from fedsynth.federation.state import Policy, QuorumError, State
from fedsynth.federation.tasks import Done, Message, Reply, leaves, task
