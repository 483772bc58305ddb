// Package pluginhost turns configured plugins into running processes, keeps
// them running, and hands out what the rest of the host needs of them: Open and
// Drop. It owns discovery, launch, checksum pin, environment, sockets, output
// and supervision of plugin processes. It must never touch a store, never open a
// channel on its own, never repeat an Open, and never signal a process that it
// did not start.
//
// # Contract
//
//  1. There is one process per configured plugin, never two. When it ends,
//     loses its connection, or misses its health checks, its process group is
//     killed and reaped, and then a new process is started: after MinBackoff,
//     then after twice as long, up to MaxBackoff; from the start again once it ran for
//     HealthyAfter. Other plugins notice nothing.
//  2. Open waits while a process starts or restarts, until its context ends. A
//     start that failed for a reason that waiting does not mend (StartError.Permanent)
//     is returned at once. It is tried again every MaxBackoff, and when a caller
//     asks more than a second after it, so a cause that was mended needs no
//     restart of the host.
//  3. A WAL belongs to its process: it breaks with it and is not moved to the next
//     one. Who opened it opens the next incarnation.
//  4. A start that fails is one *StartError: what happened, the binary, how the
//     process ended, its last lines, what to do. It leaves no process, file or
//     goroutine.
//  5. Every wait is bounded: a start by StartTimeout, Close by
//     walimpls.GracePeriod plus the time that killing takes (2 s at most).
//  6. Nothing that a plugin writes blocks it or the host, or grows without bound.
//
// # Discovery and pin
//
// The binary is Config.Path, else walrig-plugin-<backend> beside the host's
// binary, else in Options.PluginDir; the first that exists decides. The file is
// opened, its SHA-256 is computed, and the open file is executed, so one that
// replaces it meanwhile is never run. A pinned binary is executed from a sealed
// copy in memory (Linux) or in the host's private folder, which nobody can
// overwrite either. Such a process does not find its binary by os.Executable;
// the first of os.Args is the path.
//
// # Process
//
// A plugin leads a process group of its own. Its stdin is the life-line: a pipe
// that ends when the host dies. On Linux the kernel kills it then, too. What it
// has started itself is killed with its group when the plugin ends, but not when
// the host is killed, and not what has left the group. It inherits no open file
// but its three pipes.
//
// Its environment is built from nothing: of the host's variables PATH, HOME,
// USER, LOGNAME, TMPDIR, TZ, LANG, LANGUAGE, LC_*, LD_LIBRARY_PATH,
// SSL_CERT_FILE and SSL_CERT_DIR; over them Config.Env; over them what the protocol
// needs (WALRIG_PLUGIN_COOKIE, WALRIG_PLUGIN_DEPTH, PLUGIN_*: reserved, an
// entry that sets one is refused). Proxy variables are not passed: they may hold
// passwords. WALRIG_PLUGIN_DEPTH ends the chain of a plugin that starts itself.
//
// The connection is a unix socket with mutual TLS; each start has new
// certificates on both sides (AutoMTLS), so nobody else can use the socket, and no
// later host can attach to a process that is left: there is no reattach. The
// socket lies in a folder of mode 0700 in the temporary folder or, if its path is
// too long or cannot be written to, in another one. The host holds a lock on the folder;
// folders without one, of this user, are what dead hosts left, and are removed.
//
// # Output
//
// On stdout the handshake line is looked for, and everything else is noise that
// is logged. Stderr is logged: hclog's JSON lines with their level, time and
// fields, other lines as text. A line is cut at 16 KiB, and a flood (more than
// 200 lines a second after the first 2,000) is counted instead of logged.
//
// # Where to start reading
//
// core.go decides, supervise.go carries out; start.go makes one start in steps;
// process.go runs the process, conn.go the connection, output.go takes the output.
// plugin.go and host.go are the API.
//
// Locks: Plugin.mu, process.mu, output.mu and runDir.mu are leaves; none is held
// while another one is taken or while anything is waited for, but for runDir.mu,
// which is held over system calls.
package pluginhost
