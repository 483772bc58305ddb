// Package config turns what a user wrote into one checked Config for the host.
//
// It owns the one table of keys (keys.go), from which the check, the flags of
// `walrig serve`, `walrig config explain` and docs/configuration.md are made.
// It must never print or log a secret, open a store, or start anything.
//
//  1. Later sources win: defaults, the file, the environment, --set, dedicated
//     flags. Maps are merged key by key, everything else is replaced whole.
//  2. The environment sets scalar keys only: WALRIG_A__B is the key a.b.
//     WALRIG_ADDR, WALRIG_TOKEN, WALRIG_TEST_* and WALRIG_REQUIRE_* mean other
//     things and are ignored here.
//  3. All problems are reported at once, in one *Error, each with where it was
//     written (file:line, variable, flag). An unknown key names the nearest one.
//  4. A secret is written as {env: NAME} or {file: PATH}. It is read while
//     loading; one that is missing or empty is a problem. What is printed is
//     the reference, never the value.
//  5. Relative paths are relative to the current directory of the process, in
//     the file too. DataDir comes out absolute.
//
// A worked example: with the file
//
//	data_dir: /srv/walrig
//	log: {level: debug}
//
// WALRIG_LOG__LEVEL=warn and `--set listen=127.0.0.1:0`, the Config holds
// /srv/walrig, "warn" and 127.0.0.1:0, and Explain says that they come from
// walrig.yaml:1, the variable and the flag.
//
// Start reading at keys.go, then load.go.
package config
