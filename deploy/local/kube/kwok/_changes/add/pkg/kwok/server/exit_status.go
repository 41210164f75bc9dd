package server

import (
	"errors"
	osexec "os/exec"

	utilexec "k8s.io/utils/exec"
)

// exitStatus unwraps a command's non-zero exit into the error that the streaming server reports as an exit code.
func exitStatus(err error) error {
	var exit *osexec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return utilexec.CodeExitError{Err: exit, Code: exit.ExitCode()}
	}
	return err
}
