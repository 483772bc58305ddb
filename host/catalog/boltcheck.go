package catalog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts every page but its two head pages: a damaged one makes it panic,
// loop for ever, take all memory, or (a damaged list of free pages) write over
// live data later. So the whole file is checked once before bbolt maps it.
//
// The layout, all integers in the machine's byte order: page n lies at n × page size.
//
//	page:     id u64, flags u16 (1 branch, 2 leaf, 4 head, 16 free list), count u16, overflow u32; then by kind
//	head:     magic u32, version u32, page size u32, flags u32, root page u64, sequence u64,
//	          free list page u64, pages in use u64, transaction u64, FNV-1a of the bytes before u64
//	branch:   count × (pos u32, key size u32, page u64), keys at pos from the element's start
//	leaf:     count × (flags u32, pos u32, key size u32, value size u32), key and value at pos
//	free list: count × page u64; for count 65535 the first element is the count
//	bucket:   a leaf value with flag 1: root page u64, sequence u64; root 0: a leaf page follows
const (
	pageHead     = 16
	elemSize     = 16
	bucketHead   = 16
	headSize     = pageHead + 64
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreeList = 0x10
	noFreeList   = ^uint64(0)
	maxPageSize  = 16 << 20
)

var order = binary.NativeEndian

// checkFile returns what is wrong with the bbolt file of size bytes, or nil.
// An empty file is right: bbolt will make it.
func checkFile(file io.ReaderAt, size int64) error {
	if size == 0 {
		return nil
	}
	f := &boltFile{file: file, size: size, used: map[uint64]bool{}}
	head, err := f.newestHead()
	if err != nil {
		return err
	}
	if f.pages = order.Uint64(head[40:]); f.pages > uint64(size)/f.pageSize {
		return fmt.Errorf("it should have %d pages of %d bytes, but has %d bytes", f.pages, f.pageSize, size)
	}
	if err := f.tree(order.Uint64(head[16:]), 0); err != nil {
		return err
	}
	if free := order.Uint64(head[32:]); free != noFreeList {
		return f.freeList(free)
	}
	return nil
}

type boltFile struct {
	file     io.ReaderAt
	size     int64
	pageSize uint64
	pages    uint64          // the number of pages in use
	used     map[uint64]bool // the pages that were met
}

// newestHead returns the content of the valid head page of the higher
// transaction, without the page's header, and sets pageSize.
func (f *boltFile) newestHead() ([]byte, error) {
	first, err := f.head(0)
	if err == nil {
		f.pageSize = uint64(order.Uint32(first[8:]))
		second, err := f.head(int64(f.pageSize))
		if err == nil && order.Uint64(second[48:]) > order.Uint64(first[48:]) {
			return second, nil
		}
		return first, nil
	}
	for at := int64(1 << 10); at <= maxPageSize && at < f.size; at *= 2 {
		if second, err := f.head(at); err == nil && int64(order.Uint32(second[8:])) == at {
			f.pageSize = uint64(at)
			return second, nil
		}
	}
	return nil, err
}

func (f *boltFile) head(at int64) ([]byte, error) {
	var page [headSize]byte
	if _, err := f.file.ReadAt(page[:], at); err != nil {
		return nil, fmt.Errorf("the head page at %d cannot be read: %w", at, err)
	}
	b := page[pageHead:]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:56])
	switch size := order.Uint32(b[8:]); {
	case order.Uint32(b) != boltMagic:
		return nil, fmt.Errorf("it is not a bbolt file")
	case order.Uint32(b[4:]) != boltVersion:
		return nil, fmt.Errorf("it is a bbolt file of version %d, not %d", order.Uint32(b[4:]), boltVersion)
	case order.Uint64(b[56:]) != sum.Sum64():
		return nil, fmt.Errorf("the head page at %d has a wrong checksum", at)
	case size < 1<<10 || size > maxPageSize || size&(size-1) != 0:
		return nil, fmt.Errorf("the page size is %d", size)
	}
	return b, nil
}

// page reads a page with its overflow and marks it as met.
func (f *boltFile) page(id uint64) (page []byte, err error) {
	if id < 2 || id >= f.pages {
		return nil, fmt.Errorf("page %d is outside of the file's %d pages", id, f.pages)
	}
	var head [pageHead]byte
	if _, err := f.file.ReadAt(head[:], int64(id*f.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := order.Uint64(head[:]); got != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, got)
	}
	overflow := uint64(order.Uint32(head[12:]))
	if overflow >= f.pages-id {
		return nil, fmt.Errorf("page %d reaches over the file's end", id)
	}
	for p := id; p <= id+overflow; p++ {
		if f.used[p] {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		f.used[p] = true
	}
	page = make([]byte, (overflow+1)*f.pageSize)
	if _, err := f.file.ReadAt(page, int64(id*f.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return page, nil
}

const maxDepth = 64

// tree checks the page and all below it. No page is met twice, so it ends.
func (f *boltFile) tree(id uint64, depth int) error {
	page, err := f.page(id)
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return fmt.Errorf("page %d lies more than %d pages deep", id, maxDepth)
	}
	switch order.Uint16(page[8:]) {
	case flagLeaf:
		return f.leaf(id, page, depth)
	case flagBranch:
	default:
		return fmt.Errorf("page %d is neither a branch nor a leaf", id)
	}
	count := int(order.Uint16(page[10:]))
	if count == 0 {
		return fmt.Errorf("page %d is an empty branch", id)
	}
	var last []byte
	for i := range count {
		at := pageHead + i*elemSize
		if at+elemSize > len(page) {
			return fmt.Errorf("page %d has more elements than room", id)
		}
		elem := page[at:]
		key, _, ok := cut(elem, order.Uint32(elem), order.Uint32(elem[4:]), 0)
		if !ok || i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("page %d: key %d is damaged", id, i)
		}
		last = key
		if err := f.tree(order.Uint64(elem[8:]), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks a leaf page, and the buckets in it.
func (f *boltFile) leaf(id uint64, page []byte, depth int) error {
	var last []byte
	for i := range int(order.Uint16(page[10:])) {
		at := pageHead + i*elemSize
		if at+elemSize > len(page) {
			return fmt.Errorf("page %d has more elements than room", id)
		}
		elem := page[at:]
		flags := order.Uint32(elem)
		key, value, ok := cut(elem, order.Uint32(elem[4:]), order.Uint32(elem[8:]), order.Uint32(elem[12:]))
		if !ok || flags > 1 || i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("page %d: element %d is damaged", id, i)
		}
		last = key
		if flags == 0 {
			continue
		}
		if len(value) < bucketHead {
			return fmt.Errorf("page %d: bucket %q is damaged", id, key)
		}
		root, inline := order.Uint64(value), value[bucketHead:]
		switch {
		case root != 0:
			if err := f.tree(root, depth+1); err != nil {
				return err
			}
		case len(inline) < pageHead || order.Uint16(inline[8:]) != flagLeaf || depth > maxDepth:
			return fmt.Errorf("page %d: bucket %q is damaged", id, key)
		default:
			if err := f.leaf(id, inline, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut returns the key and the value that lie at pos from the element's start;
// ok is false if they do not lie inside, or the key is empty.
func cut(elem []byte, pos, keySize, valueSize uint32) (key, value []byte, ok bool) {
	from, mid := uint64(pos), uint64(pos)+uint64(keySize)
	end := mid + uint64(valueSize)
	if keySize == 0 || pos < elemSize || end > uint64(len(elem)) {
		return nil, nil, false
	}
	return elem[from:mid], elem[mid:end], true
}

// freeList checks that only pages that nobody uses are free, and each once.
func (f *boltFile) freeList(id uint64) error {
	page, err := f.page(id)
	if err != nil {
		return err
	}
	if order.Uint16(page[8:]) != flagFreeList {
		return fmt.Errorf("page %d is not a list of free pages", id)
	}
	count, list := uint64(order.Uint16(page[10:])), page[pageHead:]
	if count == 0xFFFF {
		count, list = order.Uint64(list), list[8:]
	}
	if count > uint64(len(list)/8) {
		return fmt.Errorf("page %d lists %d free pages, more than it can hold", id, count)
	}
	for i := range count {
		p := order.Uint64(list[i*8:])
		if p < 2 || p >= f.pages || f.used[p] {
			return fmt.Errorf("page %d is listed as free, which it is not", p)
		}
		f.used[p] = true
	}
	return nil
}
