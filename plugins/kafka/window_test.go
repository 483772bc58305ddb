package kafka

import (
	"math"
	"testing"
	"time"

	"github.com/walrig/walrig/sdk/walimpls"
)

func sentWindow(counts ...int32) *window {
	w := &window{lastBase: 9}
	for _, n := range counts {
		w.add(&flight{count: n})
	}
	for _, f := range w.flights {
		f.sent(time.Now())
	}
	return w
}

func states(v []verdict) (out []walimpls.State) {
	for _, x := range v {
		out = append(out, x.state)
	}
	return out
}

func wantStates(t *testing.T, v []verdict, want ...walimpls.State) {
	t.Helper()
	got := states(v)
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestSequencesFollowEachOtherAndWrapBetweenBatchesOnly(t *testing.T) {
	w := &window{next: math.MaxInt32 - 2}
	if got := w.room(); got != 3 {
		t.Fatalf("room for %d records, want the 3 up to the largest sequence", got)
	}
	w.add(&flight{count: 3})
	if w.next != 0 {
		t.Fatalf("the sequence behind the largest is %d, want 0", w.next)
	}
	w.add(&flight{count: 5})
	if w.flights[1].sequence != 0 || w.next != 5 {
		t.Fatalf("got %d, next %d", w.flights[1].sequence, w.next)
	}
}

func TestNoMoreBatchesAreInFlightThanABrokerRemembers(t *testing.T) {
	w := &window{}
	for w.room() > 0 {
		w.add(&flight{count: 1})
	}
	if n := len(w.flights); n < 1 || n > 5 {
		t.Fatalf("%d batches in flight; a resend of more than five back is not recognised", n)
	}
}

func TestARefusalThatMayPassIsSentAgain(t *testing.T) {
	for _, code := range []kafkaCode{codeNotLeader, codeNotEnoughReplicas, codeLeaderNotAvailable, codeUnknownTopic, codeCorruptMessage} {
		w := sentWindow(2, 3)
		v, again := w.answered(code, -1)
		if len(v) != 0 || !again || len(w.flights) != 2 {
			t.Fatalf("%s: %v, again %t", code, v, again)
		}
		if w.flights[0].maybe {
			t.Fatalf("%s: the broker said that it is not stored", code)
		}
	}
}

func TestWhatWasRefusedEachTimeIsNotStoredAndItsSequenceIsUsedAgain(t *testing.T) {
	w := sentWindow(2)
	w.next = 2
	_, _ = w.answered(codeNotEnoughReplicas, -1)
	wantStates(t, w.giveUp(), walimpls.NotStored)
	if w.end != goesOn || w.next != 0 {
		t.Fatalf("end %d, next sequence %d", w.end, w.next)
	}
}

func TestWhatMayBeStoredIsUnknownWhenGivenUp(t *testing.T) {
	for _, code := range []kafkaCode{codeRequestTimedOut, codeNotEnoughAfter, codeUnknownServer} {
		w := sentWindow(1)
		_, _ = w.answered(code, -1)
		_, _ = w.answered(codeNotLeader, -1) // a later refusal says nothing of the first attempt
		wantStates(t, w.giveUp(), walimpls.Unknown)
		if w.end != endsUnknown {
			t.Fatalf("%s: an unknown outcome ends the handle", code)
		}
	}
}

func TestALostConnectionLeavesEverythingInFlightOpen(t *testing.T) {
	w := sentWindow(1, 1)
	w.add(&flight{count: 1}) // not sent yet
	if v := w.lost(); len(v) != 0 {
		t.Fatalf("%v", v)
	}
	wantStates(t, w.giveUp(), walimpls.Unknown, walimpls.Unknown, walimpls.NotStored)
}

func TestAFencedBatchIsNotStoredIfItWasSentOnce(t *testing.T) {
	for _, code := range []kafkaCode{codeInvalidEpoch, codeProducerFenced} {
		w := sentWindow(1, 1)
		v, again := w.answered(code, -1)
		wantStates(t, v, walimpls.NotStored)
		if again || w.end != endsFenced || w.room() != 0 {
			t.Fatalf("again %t, end %d", again, w.end)
		}
		// The next one is refused by its own answer, or open if none comes.
		wantStates(t, w.lost(), walimpls.Unknown)
	}
}

func TestAFencedResendIsUnknown(t *testing.T) {
	w := sentWindow(1)
	w.lost()
	w.flights[0].sent(time.Now())
	v, _ := w.answered(codeInvalidEpoch, -1)
	wantStates(t, v, walimpls.Unknown)
}

func TestARefusalForGoodEndsTheWindowAndItsFollowersAreRefusedToo(t *testing.T) {
	w := sentWindow(1, 1)
	v, again := w.answered(codeMessageTooLarge, -1)
	wantStates(t, v, walimpls.NotStored)
	v, again2 := w.answered(codeOutOfOrder, -1)
	wantStates(t, v, walimpls.NotStored)
	if again || again2 || w.end != endsRefused {
		t.Fatalf("again %t %t, end %d", again, again2, w.end)
	}
}

func TestOutOfOrderOnAResendIsUnknown(t *testing.T) {
	w := sentWindow(1)
	w.lost()
	v, _ := w.answered(codeOutOfOrder, -1)
	wantStates(t, v, walimpls.Unknown)
}

func TestAnOffsetThatDoesNotAscendIsOfAnotherLog(t *testing.T) {
	w := sentWindow(2)
	v, _ := w.answered(codeNone, 10)
	wantStates(t, v, walimpls.Stored)
	w.add(&flight{count: 1})
	v, _ = w.answered(codeNone, 11) // 10 and 11 are taken
	wantStates(t, v, walimpls.Unknown)
	if w.end != endsUnknown {
		t.Fatal("the window goes on")
	}
}
