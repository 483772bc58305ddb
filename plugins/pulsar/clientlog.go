package pulsar

import (
	"fmt"
	"strings"

	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// clientLog passes the Pulsar client's log lines on, one level lower, because
// what worries the client (a closed producer, a lost connection) is daily life
// here. It also listens: the client says some things nowhere else.
type clientLog struct {
	log *zap.Logger
	// hear, if set, gets each line in the goroutine that says it.
	hear func(line string)
}

var (
	_ plog.Logger = clientLog{}
	_ plog.Entry  = clientLog{}
)

// What the client says, and this package acts on. A test fails when a version of
// the client says it in other words.
const (
	saysProducerFenced  = "Producer was fenced, failing pending messages, stop reconnecting"
	saysTopicNotFound   = "Topic not found, stop reconnecting, close the producer"
	saysTopicTerminated = "Topic was terminated, failing pending messages, stop reconnecting, close the producer"
	saysReconnected     = "Reconnected producer to broker"
	saysReconnectEnded  = "Producer is shutting down. Close the reconnect event loop"
)

func (l clientLog) say(level zapcore.Level, args []any) {
	if l.hear == nil && !l.log.Core().Enabled(level) {
		return
	}
	l.write(level, fmt.Sprint(args...))
}

func (l clientLog) sayf(level zapcore.Level, format string, args []any) {
	if l.hear == nil && !l.log.Core().Enabled(level) {
		return
	}
	l.write(level, fmt.Sprintf(format, args...))
}

func (l clientLog) write(level zapcore.Level, line string) {
	line = strings.TrimSpace(line)
	l.log.Log(level, line)
	if l.hear != nil {
		l.hear(line)
	}
}

func (l clientLog) with(fields plog.Fields) clientLog {
	if !l.log.Core().Enabled(zapcore.WarnLevel) {
		return l
	}
	zf := make([]zap.Field, 0, len(fields))
	for k, v := range fields {
		zf = append(zf, zap.Any(k, v))
	}
	return clientLog{l.log.With(zf...), l.hear}
}

func (l clientLog) SubLogger(fields plog.Fields) plog.Logger { return l.with(fields) }
func (l clientLog) WithFields(fields plog.Fields) plog.Entry { return l.with(fields) }
func (l clientLog) WithField(name string, value any) plog.Entry {
	return l.with(plog.Fields{name: value})
}
func (l clientLog) WithError(err error) plog.Entry    { return l.with(plog.Fields{"error": err}) }
func (l clientLog) Debug(...any)                      {} // it says something at each record
func (l clientLog) Debugf(string, ...any)             {}
func (l clientLog) Info(args ...any)                  { l.say(zapcore.DebugLevel, args) }
func (l clientLog) Infof(format string, args ...any)  { l.sayf(zapcore.DebugLevel, format, args) }
func (l clientLog) Warn(args ...any)                  { l.say(zapcore.InfoLevel, args) }
func (l clientLog) Warnf(format string, args ...any)  { l.sayf(zapcore.InfoLevel, format, args) }
func (l clientLog) Error(args ...any)                 { l.say(zapcore.WarnLevel, args) }
func (l clientLog) Errorf(format string, args ...any) { l.sayf(zapcore.WarnLevel, format, args) }
