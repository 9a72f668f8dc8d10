"""What each open tab of the page has said, and the reply it is waiting for. Tabs know nothing of one another."""

import threading
from collections import OrderedDict

from data.conversation import Conversation

TABS_KEPT = 1000  # a tab that closes is forgotten at once; this bounds those whose closing went unnoticed


class Turn:
    """A reply being written for a tab. Once another turn or a new chat has replaced it, it can change nothing."""

    def __init__(self, sessions: "Sessions", tab: str) -> None:
        self._sessions = sessions
        self._tab = tab
        self.stop = threading.Event()

    def keep(self, conversation: Conversation) -> bool:
        """Make this the tab's conversation; False if the turn has been replaced."""
        return self._sessions._keep(self, self._tab, conversation)

    def is_current(self) -> bool:
        """Whether nothing has replaced this turn, done or not."""
        return self._sessions._turn(self._tab) is self


class Sessions:
    """The tabs' conversations and replies, by Gradio's session hash. Safe to use from several threads."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._turns: dict[str, Turn] = {}
        self._lock = threading.Lock()

    def conversation(self, tab: str) -> Conversation:
        """What was said in the tab so far."""
        with self._lock:
            return self._conversations.get(tab, ())

    def is_busy(self, tab: str) -> bool:
        """Whether the tab waits for a reply."""
        turn = self._turn(tab)
        return turn is not None and not turn.stop.is_set()

    def begin(self, tab: str) -> Turn:
        """Begin a reply. One that the tab was still waiting for ends."""
        turn = Turn(self, tab)
        with self._lock:
            previous = self._turns.get(tab)
            self._turns[tab] = turn
        if previous:
            previous.stop.set()
        return turn

    def stop(self, tab: str) -> None:
        """Stop the tab's reply; what there is of it stays."""
        turn = self._turn(tab)
        if turn:
            turn.stop.set()

    def forget(self, tab: str) -> None:
        """Stop the tab's reply and drop its conversation."""
        with self._lock:
            turn = self._turns.pop(tab, None)
            self._conversations.pop(tab, None)
        if turn:
            turn.stop.set()

    def _turn(self, tab: str) -> Turn | None:
        with self._lock:
            return self._turns.get(tab)

    def _keep(self, turn: Turn, tab: str, conversation: Conversation) -> bool:
        with self._lock:
            if self._turns.get(tab) is not turn:
                return False
            self._conversations[tab] = conversation
            self._conversations.move_to_end(tab)
            while len(self._conversations) > TABS_KEPT:
                oldest, _ = self._conversations.popitem(last=False)
                forgotten = self._turns.pop(oldest, None)
                if forgotten:
                    forgotten.stop.set()
            return True
