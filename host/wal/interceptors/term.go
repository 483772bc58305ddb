package interceptors

// term refuses operations of a WAL whose term has ended.
type term struct{ check func() error }

// Term returns the step that refuses operations while check returns an error.
func Term(check func() error) Interceptor { return term{check} }

func (t term) Name() string           { return "term" }
func (t term) Ready() <-chan struct{} { return always }
func (t term) Close()                 {}

func (t term) Handle(op *Operation, next Handler) {
	if err := t.check(); err != nil {
		op.Refuse(err)
		return
	}
	next(op)
}
