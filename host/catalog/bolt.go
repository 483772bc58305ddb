package catalog

import (
	"bytes"
	"context"
	"errors"

	bolt "go.etcd.io/bbolt"
)

// The Catalog on top of read and write of boltstore.go.

func (c *boltCatalog) put(tx *bolt.Tx, row *Row) error {
	value, err := encodeRow(row)
	if err != nil {
		return err
	}
	return tx.Bucket(rowsBucket).Put([]byte(row.Channel), value)
}

// row decodes the channel's row; the second result is its stored form, valid
// while the transaction lasts.
func row(b *bolt.Bucket, channel string) (Row, []byte, error) {
	value := b.Get([]byte(channel))
	if value == nil {
		return Row{}, nil, notFound(channel)
	}
	r, err := decodeRow(channel, value)
	return r, value, err
}

func (c *boltCatalog) Create(ctx context.Context, r Row) error {
	if err := r.checkNew(); err != nil {
		return err
	}
	return c.write(ctx, func(tx *bolt.Tx) error {
		if tx.Bucket(rowsBucket).Get([]byte(r.Channel)) != nil {
			return alreadyExists(r.Channel)
		}
		return c.put(tx, &r)
	})
}

func (c *boltCatalog) Get(ctx context.Context, channel string) (Row, error) {
	var found Row
	err := c.read(ctx, func(b *bolt.Bucket) (err error) {
		found, _, err = row(b, channel)
		return err
	})
	return found, err
}

func (c *boltCatalog) List(ctx context.Context) ([]Row, error) {
	rows := []Row{}
	var damaged []error
	err := c.read(ctx, func(b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if r, err := decodeRow(string(k), v); err != nil {
				damaged = append(damaged, err)
			} else {
				rows = append(rows, r)
			}
			return nil
		})
	})
	return rows, errors.Join(append(damaged, err)...)
}

func (c *boltCatalog) Claim(ctx context.Context, channel string, term int64) (Row, error) {
	var claimed Row
	err := c.write(ctx, func(tx *bolt.Tx) error {
		r, _, err := row(tx.Bucket(rowsBucket), channel)
		if err != nil {
			return err
		}
		if err := r.checkClaim(term); err != nil {
			return err
		}
		r.Term = term
		claimed = r
		return c.put(tx, &r)
	})
	if err != nil {
		return Row{}, err
	}
	return claimed, nil
}

// Update runs change outside any transaction, so that a slow or panicking one
// hurts its own caller alone, and writes only over what change was shown.
func (c *boltCatalog) Update(ctx context.Context, channel string, term int64, change func(*Row) error) (Row, error) {
	for {
		var before Row
		var stored []byte
		err := c.read(ctx, func(b *bolt.Bucket) error {
			r, value, err := row(b, channel)
			before, stored = r, bytes.Clone(value)
			return err
		})
		if err != nil {
			return Row{}, err
		}
		after, err := applyUpdate(before, term, change)
		if err != nil {
			return Row{}, err
		}
		raced := false
		err = c.write(ctx, func(tx *bolt.Tx) error {
			if raced = !bytes.Equal(tx.Bucket(rowsBucket).Get([]byte(channel)), stored); raced {
				return errNothingToWrite
			}
			return c.put(tx, &after)
		})
		if err != nil {
			return Row{}, err
		}
		if !raced {
			return after, nil
		}
	}
}

func (c *boltCatalog) Delete(ctx context.Context, channel string, term int64) error {
	return c.write(ctx, func(tx *bolt.Tx) error {
		b := tx.Bucket(rowsBucket)
		r, _, err := row(b, channel)
		if err != nil {
			return err
		}
		if err := r.checkTerm("delete", term); err != nil {
			return err
		}
		return b.Delete([]byte(channel))
	})
}
