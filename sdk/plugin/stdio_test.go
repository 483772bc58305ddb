package plugin

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestNoiseNeverWaitsForTheLog(t *testing.T) {
	lines := make(chan string, 2) // nobody reads it
	noise := strings.Repeat("x", 3*noiseLineBytes) + "\nb\r\nc\nd"
	drainNoise(io.MultiReader(strings.NewReader(noise), strings.NewReader("e")), lines)
	var got []string
	for line := range lines {
		got = append(got, line)
	}
	if len(got) != 2 || len(got[0]) != noiseLineBytes || got[1] != "b" {
		t.Errorf("%d lines: %.10q", len(got), got)
	}
}

func TestNoiseIsLimitedPerSecondAndTheRestIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, seen := observer.New(zapcore.InfoLevel)
		lines := make(chan string)
		go logNoise(lines, zap.New(core), time.Second)
		for i := range noiseLines + 30 {
			lines <- fmt.Sprint(i)
		}
		time.Sleep(time.Second)
		lines <- "later"
		close(lines)
		synctest.Wait()
		got := seen.All()
		if len(got) != noiseLines+2 {
			t.Fatalf("%d lines", len(got))
		}
		if note := got[noiseLines]; note.Level != zap.WarnLevel || note.ContextMap()["lines"] != int64(30) {
			t.Errorf("the note: %+v", note)
		}
		if got[noiseLines+1].Message != "later" {
			t.Errorf("%+v", got[noiseLines+1])
		}
	})
}
