// versitygw's S3 API over a folder, for one user: the parts that tests need, which are compiled in half the CPU.
//
//	s3-server ADDRESS FOLDER
//
// It is what `versitygw --quiet --port ADDRESS posix FOLDER` runs, with that program's defaults. The user's keys are
// ROOT_ACCESS_KEY and ROOT_SECRET_KEY. Clients of other servers, for events and for accounts, are replaced by the
// modules in `absent`, which have the names that versitygw needs and do nothing.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func serve(ctx context.Context, address, folder string) error {
	if err := (meta.XattrMeta{}).Test(folder); err != nil {
		return fmt.Errorf("%s has no extended attributes: %w", folder, err)
	}
	files, err := posix.New(folder, meta.XattrMeta{}, posix.PosixOpts{
		Concurrency:         5000,
		CopyObjectThreshold: 5 << 30,
	})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, files, &embedgw.Config{
		RootUserAccess:    os.Getenv("ROOT_ACCESS_KEY"),
		RootUserSecret:    os.Getenv("ROOT_SECRET_KEY"),
		Ports:             []string{address},
		MaxConnections:    250_000,
		MaxRequests:       100_000,
		MultipartMaxParts: 10_000,
		Quiet:             true,
	})
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "s3-server needs ADDRESS and FOLDER")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
