package server

import (
	"net"

	"github.com/walrig/walrig/sdk/walimpls"
)

// CheckListen says whether a host may listen at addr ("host:port"): anywhere
// with TLS and authentication, else on a loopback address only, unless insecure
// says that this is meant. It returns ErrConfig. A name other than localhost
// counts as an address that others can reach, whatever it resolves to now.
func CheckListen(addr string, tls, auth, insecure bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		e := walimpls.Errorf(walimpls.CodeConfig, "", "listen address %q is not HOST:PORT", addr)
		e.Hint = "an address looks like 127.0.0.1:7700; port 0 takes a free one"
		return e
	}
	if insecure || tls && auth || isLoopback(host) {
		return nil
	}
	missing := "TLS and authentication"
	switch {
	case tls:
		missing = "authentication"
	case auth:
		missing = "TLS"
	}
	e := walimpls.Errorf(walimpls.CodeConfig, "", "listening at %s without %s would let everybody in who can reach it", addr, missing)
	e.Hint = "listen on 127.0.0.1, configure TLS and authentication, or say --insecure"
	return e
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
