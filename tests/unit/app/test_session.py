from app.session import TABS_KEPT, Sessions
from data.conversation import user

HI = (user("hi"),)


def test_tabs_are_apart():
    sessions = Sessions()
    assert sessions.begin("a").keep(HI)
    assert sessions.conversation("a") == HI
    assert sessions.conversation("b") == ()


def test_a_new_turn_ends_the_one_before():
    sessions = Sessions()
    old = sessions.begin("a")
    new = sessions.begin("a")
    assert old.stop.is_set() and not new.stop.is_set()
    assert not old.keep(HI) and sessions.conversation("a") == ()
    assert not old.is_current() and new.is_current()


def test_stop_leaves_the_turn_its_last_word():
    sessions = Sessions()
    turn = sessions.begin("a")
    sessions.stop("a")
    assert turn.stop.is_set() and not sessions.is_busy("a")
    assert turn.keep(HI) and sessions.conversation("a") == HI


def test_a_forgotten_tab_takes_nothing_more():
    sessions = Sessions()
    turn = sessions.begin("a")
    turn.keep(HI)
    assert sessions.is_busy("a")
    sessions.forget("a")
    assert turn.stop.is_set() and not sessions.is_busy("a")
    assert not turn.keep(HI) and sessions.conversation("a") == ()
    sessions.stop("a")
    sessions.forget("a")


def test_the_number_of_tabs_is_bounded():
    sessions = Sessions()
    turns = [sessions.begin(str(number)) for number in range(TABS_KEPT + 5)]
    for turn in turns:
        turn.keep(HI)
    kept = [number for number in range(TABS_KEPT + 5) if sessions.conversation(str(number))]
    assert kept == list(range(5, TABS_KEPT + 5))
    assert turns[0].stop.is_set() and not turns[0].keep(HI)
