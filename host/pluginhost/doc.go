// Package pluginhost turns configured plugins into running processes and keeps them running.
package pluginhost
