package plugin

import (
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LogLevelEnv names the environment variable that holds the lowest level a plugin
// logs: debug, info (the default), warn or error.
const LogLevelEnv = "WALRIG_PLUGIN_LOG_LEVEL"

// logTimeFormat is hclog's, which go-plugin's host side parses.
const logTimeFormat = "2006-01-02T15:04:05.000000Z07:00"

// newLogger returns a zap logger that writes hclog's JSON lines to out: the host
// turns them into log lines of its own. Each line is one Write.
func newLogger(out io.Writer, level zapcore.Level) *zap.Logger {
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		MessageKey:     "@message",
		LevelKey:       "@level",
		TimeKey:        "@timestamp",
		NameKey:        "@module",
		StacktraceKey:  "stacktrace",
		EncodeLevel:    encodeLevel,
		EncodeTime:     zapcore.TimeEncoderOfLayout(logTimeFormat),
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeName:     zapcore.FullNameEncoder,
	})
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(out), level))
}

// encodeLevel writes the level in hclog's words, which has none above error.
func encodeLevel(l zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
	switch {
	case l <= zapcore.DebugLevel:
		enc.AppendString("debug")
	case l == zapcore.InfoLevel:
		enc.AppendString("info")
	case l == zapcore.WarnLevel:
		enc.AppendString("warn")
	default:
		enc.AppendString("error")
	}
}

// logLevel reads LogLevelEnv.
func logLevel() zapcore.Level {
	level, err := zapcore.ParseLevel(os.Getenv(LogLevelEnv))
	if err != nil || os.Getenv(LogLevelEnv) == "" {
		return zapcore.InfoLevel
	}
	return level
}

// newHCLog returns the logger for go-plugin itself, which is chatty below warn.
func newHCLog(out io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "go-plugin", Level: hclog.Warn, Output: out, JSONFormat: true})
}
