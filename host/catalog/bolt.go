package catalog

import (
	"bytes"
	"context"
	"errors"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// The Catalog on top of read and write of boltstore.go.

func (c *boltCatalog) put(tx *bolt.Tx, row *Row) error {
	value, err := encodeRow(row)
	if err != nil {
		return err
	}
	if len(value) >= worthKeeping {
		c.decoded.put(row.Channel, value, *row)
	}
	return tx.Bucket(rowsBucket).Put([]byte(row.Channel), value)
}

// row decodes the channel's row; the second result is its stored form, valid
// while the transaction lasts.
func (c *boltCatalog) row(b *bolt.Bucket, channel string) (Row, []byte, error) {
	value := b.Get([]byte(channel))
	if value == nil {
		return Row{}, nil, notFound(channel)
	}
	if r, ok := c.decoded.get(channel, value); ok {
		return r, value, nil
	}
	r, err := decodeRow(channel, value)
	if err == nil && len(value) >= worthKeeping {
		c.decoded.put(channel, value, r)
	}
	return r, value, err
}

// worthKeeping is the stored size from which a row is kept decoded: one with ten
// thousand vchannels takes milliseconds to decode, at each tick window.
const worthKeeping = 16 << 10

// decodedRows keeps large rows as they were decoded last. One counts only while
// the stored bytes are the very same, so it can never be stale.
type decodedRows struct {
	mu     sync.Mutex // guards byName
	byName map[string]decodedRow
}

type decodedRow struct {
	value []byte
	row   Row
}

func (d *decodedRows) get(channel string, value []byte) (Row, bool) {
	d.mu.Lock()
	kept, ok := d.byName[channel]
	d.mu.Unlock()
	if !ok || !bytes.Equal(kept.value, value) {
		return Row{}, false
	}
	return kept.row.Clone(), true
}

func (d *decodedRows) put(channel string, value []byte, r Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byName == nil {
		d.byName = map[string]decodedRow{}
	}
	d.byName[channel] = decodedRow{bytes.Clone(value), r.Clone()}
}

func (d *decodedRows) forget(channel string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byName, channel)
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
		found, _, err = c.row(b, channel)
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
		r, _, err := c.row(tx.Bucket(rowsBucket), channel)
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
			r, value, err := c.row(b, channel)
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
		r, _, err := c.row(b, channel)
		if err != nil {
			return err
		}
		if err := r.checkTerm("delete", term); err != nil {
			return err
		}
		c.decoded.forget(channel)
		return b.Delete([]byte(channel))
	})
}
