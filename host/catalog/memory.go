package catalog

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// NewMemory returns a Catalog that forgets everything when it is dropped. It is
// meant for tests; it keeps the same rules as the one on disk.
func NewMemory() Catalog { return &memory{rows: map[string]versioned{}} }

type memory struct {
	mu     sync.Mutex // guards all below
	closed bool
	rows   map[string]versioned
	writes uint64
}

// versioned is a row and the number of the write that left it, by which Update
// notices that the row changed while change ran.
type versioned struct {
	row   Row
	write uint64
}

// lock locks mu, unless ctx has ended or the catalog is closed.
func (m *memory) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return closedError()
	}
	return nil
}

func (m *memory) put(row Row) {
	m.writes++
	m.rows[row.Channel] = versioned{row: row, write: m.writes}
}

func (m *memory) Create(ctx context.Context, row Row) error {
	if err := row.checkNew(); err != nil {
		return err
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if _, ok := m.rows[row.Channel]; ok {
		return alreadyExists(row.Channel)
	}
	m.put(row.Clone())
	return nil
}

func (m *memory) find(ctx context.Context, channel string) (versioned, error) {
	if err := m.lock(ctx); err != nil {
		return versioned{}, err
	}
	defer m.mu.Unlock()
	v, ok := m.rows[channel]
	if !ok {
		return versioned{}, notFound(channel)
	}
	return v, nil
}

func (m *memory) Get(ctx context.Context, channel string) (Row, error) {
	v, err := m.find(ctx, channel)
	return v.row.Clone(), err
}

func (m *memory) List(ctx context.Context) ([]Row, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	rows := make([]Row, 0, len(m.rows))
	for _, v := range m.rows {
		rows = append(rows, v.row.Clone())
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Channel, b.Channel) })
	return rows, nil
}

func (m *memory) Claim(ctx context.Context, channel string, term int64) (Row, error) {
	if err := m.lock(ctx); err != nil {
		return Row{}, err
	}
	defer m.mu.Unlock()
	v, ok := m.rows[channel]
	if !ok {
		return Row{}, notFound(channel)
	}
	if err := v.row.checkClaim(term); err != nil {
		return Row{}, err
	}
	row := v.row
	row.Term = term
	m.put(row)
	return row.Clone(), nil
}

func (m *memory) Update(ctx context.Context, channel string, term int64, change func(*Row) error) (Row, error) {
	for {
		v, err := m.find(ctx, channel)
		if err != nil {
			return Row{}, err
		}
		after, err := applyUpdate(v.row, term, change)
		if err != nil {
			return Row{}, err
		}
		stored, err := m.replace(ctx, v, after)
		if err != nil || stored {
			return after.Clone(), err
		}
	}
}

// replace stores after if the row is still the one that old describes.
func (m *memory) replace(ctx context.Context, old versioned, after Row) (bool, error) {
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if m.rows[after.Channel].write != old.write {
		return false, nil
	}
	m.put(after)
	return true, nil
}

func (m *memory) Delete(ctx context.Context, channel string, term int64) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	v, ok := m.rows[channel]
	if !ok {
		return notFound(channel)
	}
	if err := v.row.checkTerm("delete", term); err != nil {
		return err
	}
	delete(m.rows, channel)
	return nil
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
