// Every operator on tensors of a device is carried out by torch's CPU kernel on the same memory: one boxed kernel for
// the dispatch key. What it makes becomes the device's without a copy.

namespace emulated {

// Operators that take tensors of the host beside those of a device, or of two devices.
bool takes_both(const std::string &name) {
  static const std::set<std::string> exactly{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
  for (const char *start : {"aten::copy_", "aten::_copy_from", "aten::set_", "aten::_pad_packed_sequence",
                            "aten::_pack_padded_sequence", "aten::_unsafe_index", "aten::_nested_view_from_buffer"})
    if (name.rfind(start, 0) == 0) return true;
  return exactly.count(name) > 0;
}

// Results that are the host's: sizes of what a tensor is made of.
bool stays(const std::string &name, size_t result) {
  return name.rfind("aten::_nested_tensor_s", 0) == 0 || (name == "aten::_pack_padded_sequence" && result == 1);
}

// Lets an operator of the CPU that names no generator draw from this one.
class DrawsFrom {
 public:
  explicit DrawsFrom(const at::Generator &given) : cpu_(at::detail::getDefaultCPUGenerator()), was_(cpu_.get_state()) {
    cpu_.set_state(given.get_state());
  }
  ~DrawsFrom() { cpu_.set_state(was_); }

 private:
  at::Generator cpu_;
  Tensor was_;
};

// Where a tensor of up to DIMENSIONS dimensions has its elements.
Operand elements_of(const Tensor &t, bool writes) {
  Operand one;
  one.at = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data();
  one.at = static_cast<const char *>(one.at) + t.storage_offset() * t.element_size();
  one.writes = writes, one.dimensions = int(t.dim()), one.item = int64_t(t.element_size());
  std::copy_n(t.sizes().begin(), t.dim(), one.sizes);
  std::copy_n(t.strides().begin(), t.dim(), one.strides);
  return one;
}

// Notes that an operator has read or written a tensor's elements.
void note(Work &work, const Tensor &t, bool writes) {
  if (!t.numel() || !t.has_storage()) return;
  if (work.count == OPERANDS || t.dim() > DIMENSIONS) {
    if (writes) pool().write(t.storage().data());
    return;
  }
  work.operands[work.count++] = elements_of(t, writes);
}

// Keeps what an operator did until somebody asks. What it has written of an allocation that is known of in part waits.
void keep(Work &work) {
  for (int i = 0; i < work.count; i++)
    if (work.operands[i].writes && !pool().write_all(work.operands[i])) work.partly = 1;
  std::lock_guard lock(works_mutex);
  work.number = ++works_done, work.thread = int64_t(pthread_self());
  works.push_back(work);
  if (works.size() <= WORKS) return;
  for (int i = 0; works.front().partly && i < works.front().count; i++)
    if (works.front().operands[i].writes) pool().write(works.front().operands[i].at);
  works.pop_front();
}

// Whether a script has registered the CPU's kernel of an operator. It means the CPU by that; a library that was built
// without CUDA may mean anything.
bool of_python(const c10::OperatorHandle &op) {
  if (op.operator_name().getNamespace() == "aten") return false;
  std::istringstream lines(op.dumpState());
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("CPU:", 0) == 0) return line.find(".py:") != std::string::npos || line.find(" at <") != std::string::npos;
  return false;
}

// One call of an operator: what stands for what.
class Call {
 public:
  Call(const c10::OperatorHandle &op, torch::jit::Stack *stack, DispatchKey key)
      : op_(op), schema_(op.schema()), stack_(stack), key_(key), both_(takes_both(schema_.name())),
        collects_(schema_.name().rfind("c10d::", 0) == 0) {}

  // into: what results are copied to, in a replay.
  void run(const std::vector<Kept> *into = nullptr) {
    const std::string &name = schema_.name();
    const size_t given = schema_.arguments().size(), first = stack_->size() - given;
    const bool draws = op_.hasTag(at::Tag::nondeterministic_seeded);
    refuse_dtype(schema_, c10::ArrayRef<IValue>(stack_->data() + first, given));
    if (at::globalContext().deterministicAlgorithms())
      alert_not_deterministic(schema_, c10::ArrayRef<IValue>(stack_->data() + first, given));
    std::shared_ptr<Recorded> record;
    if (anywhere_captured && !into) record = captured(first, given);
    dry_ = record != nullptr;
    for (size_t i = 0; i < given; i++) {
      const auto &argument = schema_.arguments()[i];
      writes_ = collects_ ? argument.name().rfind("input", 0) && name != "c10d::send"
                          : argument.alias_info() && argument.alias_info()->isWrite();
      reads_ = !writes_ || !(argument.is_out() || overwrites(name) || (collects_ && argument.name().rfind("output", 0) == 0));
      down((*stack_)[first + i]);
    }
    TORCH_CHECK(!(draws && host_operand_ && tensors_.empty()), "Expected a 'cpu' device type for generator but found 'cuda'");
    waits_ = copies() && !(given > 2 && (*stack_)[first + 2].isBool() && (*stack_)[first + 2].toBool());
    TORCH_CHECK(both_ || !host_operand_ || tensors_.empty(), name,
                ": Expected all tensors to be on the same device, but found at least two devices, cuda:", int(where_),
                " and cpu!");
    TORCH_CHECK(where_ < devices, "CUDA error: invalid device ordinal: cuda:", int(where_), " of ", devices,
                " (`run --devices N`)");
    if (where_ < 0) where_ = current;
    TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(key_) && !of_python(op_), op_.operator_name(),
                                " on the emulated device: ",
                                name.rfind("aten::", 0) ? "its library has registered no kernel for CUDA"
                                                        : "torch has no kernel for the CPU that would do its work");
    const bool reads = to_host_ || name == "aten::_local_scalar_dense" || (copies() && !copied_to_device());
    if (pinned_ && told && !dry_) told(BEGINS, 0, 0);
    if (dry_) {
      refuse_in_capture(reads, first, given);
    } else if (reads || (attentive && touches())) {
      const Tensor *t = reads && !tensors_.empty() ? &tensors_.back().first : nullptr;
      const bool some = t && t->numel() && t->has_storage() && t->dim() <= DIMENSIONS;
      ask(devices_, reads, name.c_str(), some ? std::optional(elements_of(*t, false)) : std::nullopt);
    }
    const c10::DispatchKeySet keys = c10::DispatchKeySet(DispatchKey::CPU) | c10::DispatchKeySet(key_);
    std::optional<Twice> twice;
    std::vector<Tensor> operands;  // and results
    if (unwritten_ && !dry_ && !draws && !into && !reads && !collects_ && touches()) {
      for (size_t i = 0; i < given; i++) each((*stack_)[first + i], [&](const Tensor &t) { return operands.push_back(t), t; });
      twice.emplace(op_, keys, c10::ArrayRef<IValue>(stack_->data() + first, given));
    }
    {
      const bool was = std::exchange(inside, !to_host_);
      try {
        draws ? draw(keys, first, given) : op_.redispatchBoxed(keys, stack_);
      } catch (...) {
        inside = was;
        throw;
      }
      inside = was;
    }
    write_back();
    const size_t results = schema_.returns().size();
    size_t next = 0;
    if (!to_host_)
      for (size_t i = 0; i < results; i++)
        each((*stack_)[stack_->size() - results + i],
             [&](const Tensor &t) { return stays(name, i) ? t : into ? put(t, (*into)[next++]) : up(t); });
    if (dry_)
      remember(std::move(record), results);
    else if (touches() || !tensors_.empty() || made_)
      done();
    if (twice) {
      for (Tensor &t : operands) t = up(t);
      for (size_t i = 0; i < results; i++)
        each((*stack_)[stack_->size() - results + i], [&](const Tensor &t) { return operands.push_back(t), t; });
      twice->tell(operands, name.c_str());
    }
  }

 private:
  struct Pair {
    Storage device, host;
    bool fresh;  // the host's was there first
  };

  // Draws from the generator that is given, or the device's; what a capture computes of zeros draws nothing.
  void draw(c10::DispatchKeySet keys, size_t first, size_t given) {
    const at::Generator generator = generator_ ? *generator_ : default_generator(where_);
    Generator &own = generator_of(generator);
    const DrawState before = *own.state;
    if (!drawn(op_, stack_, generator)) {
      const at::Generator of_cpu = own.of_cpu(4);
      std::optional<DrawsFrom> drawing(of_cpu);
      for (size_t i = 0; i < given; i++)
        if (is_generator(schema_.arguments()[i])) (*stack_)[first + i] = of_cpu, drawing.reset();
      op_.redispatchBoxed(keys, stack_);
    }
    if (dry_) *own.state = before;
  }

  static bool is_generator(const c10::Argument &argument) {
    auto type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    return type->kind() == c10::TypeKind::GeneratorType;
  }

  // -- inside the capture of a CUDA graph

  // What a replay needs of this call, where a capture is under way and it does more than to look at tensors.
  std::shared_ptr<Recorded> captured(size_t first, size_t given) {
    int device = -1;
    bool any = false;
    for (size_t i = 0; i < given; i++) {
      auto &v = (*stack_)[first + i];
      if (v.isDevice() && v.toDevice().is_cuda()) device = v.toDevice().has_index() ? v.toDevice().index() : current;
      each(v, [&](const Tensor &t) {
        if (t.defined() && t.is_cuda()) any = true, device = device < 0 ? t.get_device() : device;
        return t;
      });
    }
    if (device < 0) device = current;
    const auto &returns = schema_.returns();
    const auto *info = returns.size() == 1 ? returns[0].alias_info() : nullptr;
    const bool looks = any && info && !info->isWrite(), empty = writes_nothing();
    if (device >= DEVICES || !capturing[device] || looks || empty || schema_.name() == "aten::set_") return nullptr;
    if (!is_captured(streams[device])) return nullptr;
    auto made = std::make_shared<Recorded>(Recorded{op_, {}, {}, {}, {}, key_, device});
    for (size_t i = 0; i < given; i++) {
      IValue v = (*stack_)[first + i];
      each(v, [&](const Tensor &t) { return originals_.push_back(t), t; });
      replace(v, made->tensors);
      made->operands.push_back(std::move(v));
    }
    return made;
  }
  static void replace(IValue &v, std::vector<Kept> &with) {
    static const Tensor placeholder = at::empty({0});
    each(v, [&](const Tensor &t) { return with.push_back(kept(t)), placeholder; });
  }

  void refuse_in_capture(bool reads, size_t first, size_t given) {
    const std::string &name = schema_.name();
    TORCH_CHECK(!(copies() && host_operand_ && !pinned_), "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless "
                "the CPU tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True.");
    bool waits = (reads && !copies()) || collects_ || (copies() && host_operand_ && waits_);
    waits |= synchronises() && name.rfind("aten::linalg", 0) && name.rfind("aten::_linalg", 0);
    if (waits) ask(devices_, true, (name + " waits for the device").c_str());  // which refuses
  }

  void remember(std::shared_ptr<Recorded> record, size_t results) {
    for (size_t i = 0; i < results; i++) {
      IValue v = (*stack_)[stack_->size() - results + i];
      replace(v, record->made);
    }
    for (size_t i = 0; i < originals_.size(); i++)  // which may have another shape now
      if (originals_[i].is_cuda()) record->tensors[i] = kept(originals_[i]);
    for (auto &p : storages_)  // nobody has computed it yet
      if (p.fresh || written_.count(p.device.unsafeGetStorageImpl())) spoil(p.device);
    int64_t number;
    {
      std::lock_guard lock(recorded_mutex);
      number = next_recorded++;
      recorded[number] = std::move(record);
    }
    if (told) told(CAPTURED, number, streams[where_]);
  }

  // Makes memory that this capture has allocated what no program expects.
  static void spoil(const Storage &s) {
    void *at = const_cast<void *>(s.data());
    if (at && s.device_type() == DeviceType::CUDA && pool().of_graph(at) == capturing[s.device().index()])
      std::memset(at, 0xff, s.nbytes());
  }

  // A replay's result belongs where the capture's was.
  Tensor put(const Tensor &t, const Kept &kept) {
    if (!t.defined() || t.is_cuda()) return t;
    for (auto &[device, host] : tensors_)
      if (host.is_same(t)) return device;
    for (auto &p : storages_)
      if (is_plain(t) && p.host.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return up(t);
    Tensor to = tensor_of(kept, schema_.name());
    if (!is_plain(t)) return to.copy_(up(t));
    alias(to, same_memory(to.storage(), Device(DeviceType::CPU)), DispatchKey::CPU).copy_(t);
    made_ = true;
    note(to, true);
    return to;
  }

  // Notes what has been read and written, and tells of it. The host waits for what it gets; if it is asked to, also for
  // copies from its memory.
  void done() {
    const std::string &name = schema_.name();
    if (!touches() && !made_) return;
    const bool host = copies() && host_operand_;
    work_.waits = to_host_ || name == "aten::_local_scalar_dense" || synchronises() ||
                  (host && (waits_ || (!copied_to_device() && !pinned_)));
    std::strncpy(work_.name, name.c_str(), NAME - 1);
    work_.device = where_, work_.queue = streams[where_];
    keep(work_);
    if ((watching || pinned_) && told) told(DONE, 0, 0);
  }
  // Operators of CUDA that wait for the size of their result, as that of a mask, or return a number.
  bool synchronises() const {
    const std::string &name = schema_.name();
    for (const char *start : {"aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique", "aten::bincount",
                              "aten::repeat_interleave", "aten::equal", "aten::linalg", "aten::_linalg",
                              "aten::multinomial", "aten::histc", "aten::is_nonzero"})
      if (name.rfind(start, 0) == 0) return name != "aten::linalg_vector_norm" && name != "aten::linalg_cross";
    const bool puts = name.rfind("aten::index_put", 0) == 0 || name == "aten::_index_put_impl_";
    for (size_t i = 1; (puts || name == "aten::index") && i + puts < tensors_.size(); i++)
      if (tensors_[i].first.scalar_type() == at::kBool || tensors_[i].first.scalar_type() == at::kByte) return true;
    return false;
  }
  void note(const Tensor &t, bool writes) { emulated::note(work_, t, writes); }

  static bool overwrites(const std::string &name) {  // its first operand, of whose elements it uses none
    return name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
  }
  bool copies() const { return schema_.name() == "aten::copy_"; }
  bool copied_to_device() const { return first_is_device_; }
  bool touches() const {  // whether it looks at elements: views do not
    const auto &returns = schema_.returns();
    const auto *info = returns.size() == 1 ? returns[0].alias_info() : nullptr;
    return !tensors_.empty() && (!info || info->isWrite());
  }

  void down(IValue &v) {
    if (each(v, [&](const Tensor &t) { return down(t); })) return;
    if (v.isDevice()) {
      Device d = v.toDevice();
      if (d.is_cuda()) {
        where_ = d.has_index() ? d.index() : current;
        v = Device(DeviceType::CPU);
      } else {
        to_host_ = true;
      }
    } else if (v.isStorage() && v.toStorage().device_type() == DeviceType::CUDA) {
      if (where_ < 0) where_ = v.toStorage().device().index();
      v = host_of(v.toStorage());
    } else if (v.isGenerator()) {
      generator_ = v.toGenerator(), generator_of(*generator_);
    }
  }

  Tensor down(const Tensor &t) {
    if (!t.defined()) return t;
    if (tensors_.empty()) first_is_device_ |= !host_operand_ && t.is_cuda();
    if (!t.is_cuda()) {
      host_operand_ |= t.dim() > 0 || copies();
      if (copies() && t.layout() == c10::kStrided && t.is_cpu() && t.has_storage() && pool().pinned(t.storage().data()))
        pinned_ = true, note(t, writes_);
      return t;
    }
    const auto index = t.get_device();
    TORCH_CHECK(both_ || where_ < 0 || where_ == index || t.dim() == 0 || scalars_,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(where_),
                " and cuda:", int(index), "!");
    if (where_ < 0 || (scalars_ && t.dim())) where_ = index;
    scalars_ = scalars_ && t.dim() == 0;
    devices_ |= uint64_t(1) << index;
    for (auto &pairs : {&tensors_, &wholes_})
      for (auto &[device, host] : *pairs)
        if (device.is_same(t)) {
          if (is_plain(t)) note(t, writes_);
          return host;
        }
    if (!is_plain(t)) {
      auto memory = [&](const Storage &s) { return host_of(s); };
      wholes_.emplace_back(t, of_parts(t, false, schema_.name(), [&](const Tensor &part) { return down(part); }, memory));
      return wholes_.back().second;
    }
    unwritten_ |= reads_ && undefined && pool().unwritten(t.storage().data());
    if (dry_ && writes_) written_.insert(t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    note(t, writes_);
    tensors_.emplace_back(t, alias(t, host_of(t.storage()), DispatchKey::CPU));
    return tensors_.back().second;
  }

  Tensor up(const Tensor &t) {
    if (!t.defined() || t.is_cuda()) return t;
    for (auto &pairs : {&tensors_, &wholes_})
      for (auto &[device, host] : *pairs)
        if (host.is_same(t)) return device;
    if (copies()) return t;  // to a tensor of the host, which stays that
    if (t._is_zerotensor()) return at::zeros(t.sizes(), t.options().device(Device(DeviceType::CUDA, where_)));
    if (!is_plain(t))
      return of_parts(t, true, schema_.name(), [&](const Tensor &part) { return up(part); },
                      [&](const Storage &s) {
                        Storage made = device_of(s, nullptr);
                        if (made.data()) pool().write(const_cast<void *>(made.data()));
                        return made;
                      });
    const size_t known = storages_.size();
    Tensor made = alias(t, device_of(t.storage(), &t), DispatchKey::CUDA);
    if (storages_.size() > known && !writes_nothing()) {
      made_ = true;
      note(made, true);
    }
    return made;
  }

  // Whether what it returns is memory as it is found, and not what torch fills that with under deterministic algorithms.
  bool writes_nothing() const {
    auto &torch = at::globalContext();
    if (torch.deterministicAlgorithms() && torch.deterministicFillUninitializedMemory()) return false;
    return schema_.name().find("empty") != std::string::npos;
  }

  Storage host_of(const Storage &s) {
    for (auto &p : storages_)
      if (p.device.unsafeGetStorageImpl() == s.unsafeGetStorageImpl()) return p.host;
    TORCH_CHECK_NOT_IMPLEMENTED(s.data() || !s.nbytes(), schema_.name(), " of a tensor without memory");
    storages_.push_back({s, dry_ ? zeros(s) : same_memory(s, Device(DeviceType::CPU)), false});
    return storages_.back().host;
  }
  static Storage zeros(const Storage &s) {
    const size_t n = s.nbytes();
    DataPtr data = n ? take(n, TEMPORARY, Device(DeviceType::CPU)) : DataPtr(nullptr, Device(DeviceType::CPU));
    if (n) pool().clear(data.get(), n);
    return Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), n, std::move(data), &inside_allocator, true));
  }

  Storage device_of(const Storage &s, const Tensor *like) {
    for (auto &p : storages_)
      if (p.host.unsafeGetStorageImpl() == s.unsafeGetStorageImpl()) return p.device;
    auto *impl = s.unsafeGetStorageImpl();
    Storage made(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), impl->nbytes(),
                                                       taken_over(impl, where_, like), &device_allocator, true));
    storages_.push_back({made, s, true});
    return made;
  }

  // The memory of a CPU kernel's result as a device's: itself, or a copy where it is not from the pool.
  static DataPtr taken_over(c10::StorageImpl *impl, DeviceIndex device, const Tensor *like) {
    const size_t n = impl->nbytes();
    if (!n) return DataPtr(nullptr, Device(DeviceType::CUDA, device));
    TORCH_CHECK_NOT_IMPLEMENTED(impl->data(), "tensors without memory on the emulated device");
    if (impl->data_ptr().get_deleter() == &release && pool().device_of(impl->data()) == TEMPORARY && pool().has(impl->data())) {
      room_for(n, device);
      DataPtr data = impl->set_data_ptr(DataPtr(nullptr, Device(DeviceType::CPU)));
      data.unsafe_set_device(Device(DeviceType::CUDA, device));
      pool().become(data.get(), n, device, like);
      return data;
    }
    DataPtr data = DeviceAllocator::on(n, device);
    std::memcpy(data.get(), impl->data(), n);
    return data;
  }

  // What a kernel has changed of an operand besides its elements: resize_, set_, out=.
  void write_back() {
    for (auto &[device, host] : tensors_) {
      auto *to = device.unsafeGetTensorImpl();
      auto *storage = host.storage().unsafeGetStorageImpl();
      if (!storage) continue;
      bool wrote = false;  // to memory that was not there when its operands were noted: resize_ of none writes nothing
      for (auto &p : storages_)
        if (!p.fresh && p.host.unsafeGetStorageImpl() == storage &&
            (dry_ ? storage->nbytes() > p.device.nbytes() : storage->data() != p.device.data())) {  // it has grown
          const size_t n = storage->nbytes();
          wrote = !dry_ && (p.device.nbytes() || schema_.name() != "aten::resize_");
          p.device.set_data_ptr(taken_over(storage, device.get_device(), &host));
          p.device.set_nbytes(n);
        }
      Storage s = device_of(host.storage(), &device);
      if (s.unsafeGetStorageImpl() != to->unsafe_storage().unsafeGetStorageImpl()) to->set_storage_keep_dtype(s);
      if (host.sizes() != device.sizes() || host.strides() != device.strides() ||
          host.storage_offset() != device.storage_offset())
        to->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      if (host.is_conj() != device.is_conj()) to->_set_conj(host.is_conj());
      if (host.is_neg() != device.is_neg()) to->_set_neg(host.is_neg());
      if (wrote) made_ = true, note(device, true);
    }
    for (auto &[device, host] : wholes_) take_parts(device, host, [&](const Tensor &part) { return up(part); });
  }

  const c10::OperatorHandle &op_;
  const c10::FunctionSchema &schema_;
  torch::jit::Stack *stack_;
  const DispatchKey key_;  // of the CPU
  const bool both_, collects_;  // collects_: among ranks, into operands that its schema does not mark
  bool dry_ = false;  // on memory of zeros
  std::optional<at::Generator> generator_;
  std::vector<Tensor> originals_;
  std::set<const c10::StorageImpl *> written_;
  c10::SmallVector<Pair, 4> storages_;
  c10::SmallVector<std::pair<Tensor, Tensor>, 4> tensors_, wholes_;  // (device's, host's): plain ones, and those of parts
  DeviceIndex where_ = -1;                                  // where results belong
  uint64_t devices_ = 0;
  Work work_ = {};
  bool unwritten_ = false, reads_ = true;  // some of what it reads may be what nobody has written
  bool writes_ = false, waits_ = false, pinned_ = false, made_ = false;
  bool to_host_ = false, host_operand_ = false, scalars_ = true, first_is_device_ = false;
};

void by_the_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) { Call(op, stack, DispatchKey::CPU).run(); }

template <DispatchKey key>
void of_parts_by_the_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  Call(op, stack, key).run();
}

// Carries out an operator of a CUDA graph again, in a queue.
void replay(int64_t number, int64_t queue) {
  std::shared_ptr<Recorded> what;
  {
    std::lock_guard lock(recorded_mutex);
    what = recorded.at(number);
  }
  torch::jit::Stack stack = what->operands;
  size_t next = 0;
  for (auto &v : stack)
    each(v, [&](const Tensor &) { return tensor_of(what->tensors[next++], what->op.schema().name()); });
  const auto was = std::exchange(streams[what->device], queue);
  const auto device = std::exchange(current, DeviceIndex(what->device));
  auto back = [&] { streams[what->device] = was, current = device; };
  try {
    Call(what->op, &stack, what->key).run(&what->made);
  } catch (...) {
    back();
    throw;
  }
  back();
}
void forget_recorded(c10::IntArrayRef numbers) {
  std::lock_guard lock(recorded_mutex);
  for (auto number : numbers) recorded.erase(number);
}

// What an operator of our own has read and written, as `Call::done` tells of others.
void done_by_us(at::TensorList read, const Tensor &written, const char *name) {
  Work work = {};
  std::strncpy(work.name, name, NAME - 1);
  work.device = written.get_device(), work.queue = streams[work.device];
  for (const Tensor &t : read) note(work, t, false);
  note(work, written, true);
  keep(work);
  if (watching && told) told(DONE, 0, 0);
}
void done_by_python(at::TensorList read, const Tensor &written, std::string name) { done_by_us(read, written, name.c_str()); }

// UntypedStorage.resize_, of the storage of a tensor of bytes.
void resize_storage(const Tensor &t, int64_t bytes) {
  const Storage &storage = t.storage();
  const DeviceIndex device = t.get_device();
  ask(uint64_t(1) << device, false, "resize_");
  DataPtr data = bytes ? DeviceAllocator::on(bytes, device) : DataPtr(nullptr, Device(DeviceType::CUDA, device));
  const int64_t kept = std::min<int64_t>(bytes, storage.nbytes());
  if (kept) std::memcpy(data.get(), storage.data(), kept);
  storage.set_data_ptr(std::move(data));
  storage.set_nbytes(bytes);
  if (kept) done_by_us({}, t.as_strided({kept}, {1}), "aten::resize_");
}

Tensor &zero_(Tensor &t) {
  if (!capturing[t.get_device()] && t.is_non_overlapping_and_dense() && t.numel() * t.element_size() >= CLEARED) {
    ask(uint64_t(1) << t.get_device(), false, "zero_");
    pool().clear(t.mutable_data_ptr(), t.numel() * t.element_size());
    done_by_us({}, t, "aten::zero_");
    return t;
  }
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::zero_", "");
  torch::jit::Stack stack{t};
  by_the_cpu(op, &stack);
  return t;
}

// CUDA makes float of half on the way to it.
void softmax(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  auto &x = (*stack)[stack->size() - 3], &to_float = (*stack)[stack->size() - 1];
  const bool stays = to_float.toBool();
  const auto dtype = x.toTensor().scalar_type();
  if (c10::isReducedFloatingType(dtype)) x = x.toTensor().to(at::kFloat);
  to_float = false;
  by_the_cpu(op, stack);
  if (!stays) stack->back() = stack->back().toTensor().to(dtype);
}
void softmax_backward(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  auto &dtype = (*stack)[stack->size() - 1];
  const auto wanted = dtype.toScalarType();
  const Tensor gradient = (*stack)[stack->size() - 4].toTensor(), output = (*stack)[stack->size() - 3].toTensor();
  dtype = gradient.scalar_type();
  if (c10::isReducedFloatingType(gradient.scalar_type()) && op.schema().name() == "aten::_softmax_backward_data") {
    const Tensor product = (gradient * output).to(at::kFloat);  // rounded, as SoftMax.cu hands it on
    const Tensor sum = product.sum((*stack)[stack->size() - 2].toInt(), true).to(at::kDouble);
    torch::jit::drop(*stack, 4);
    stack->push_back((product - output * sum).to(at::kFloat).to(wanted));  // an fma
    return;
  }
  by_the_cpu(op, stack);
  if (stack->back().toTensor().scalar_type() != wanted) stack->back() = stack->back().toTensor().to(wanted);
}

// Operators that CUDA carries out in float on halves, and torch's CPU kernels in halves, as an H200 gave them for torch's
// own samples (tests/emulated_gpu/serve/halves_of_cuda.py), in all their forms: those operands whose dtypes results
// get, the others staying float, and those that it writes to without saying so in its schema.
struct InFloat {
  std::vector<int> like, written;
  bool numbers = false;  // only beside numbers, such as alpha, which CUDA has in float, and torch's CPU kernels as one of the halves
};
const std::map<std::string, InFloat> IN_FLOAT = [] {
  std::map<std::string, InFloat> all;
  auto add = [&](const InFloat &how, std::initializer_list<const char *> names) {
    for (const char *name : names) all[name] = how;
  };
  add({{0}, {}}, {"native_layer_norm", "prod", "logit", "logit_backward", "log_sigmoid_forward", "log_sigmoid_backward",
      "rsqrt", "xlogy", "special_xlog1py", "special_i0e", "_index_put_impl_", "embedding_dense_backward",
      "_embedding_bag_backward", "_embedding_bag_dense_backward", "_upsample_bilinear2d_aa_backward",
      "_upsample_bicubic2d_aa_backward", "multi_margin_loss", "avg_pool3d", "_adaptive_avg_pool3d", "grid_sampler_2d",
      "grid_sampler_3d", "upsample_linear1d", "upsample_bicubic2d", "upsample_trilinear3d", "col2im", "glu_backward",
      "special_entr", "sinc", "mish_backward", "_fft_r2c", "_fft_c2c", "_fft_c2r"});
  add({{1, 5, 6}, {}}, {"native_layer_norm_backward"});
  add({{0}, {3, 4}}, {"native_batch_norm", "_batch_norm_with_update"});
  add({{1, 2, 2}, {}}, {"native_batch_norm_backward", "batch_norm_backward", "convolution_backward"});
  add({{1, 4, 4}, {}}, {"native_group_norm_backward"});
  add({{0, 0}, {}}, {"nll_loss_forward", "nll_loss2d_forward", "multilabel_margin_loss_forward"});
  add({{1}, {}}, {"multi_margin_loss_backward", "multilabel_margin_loss_backward", "max_pool2d_with_indices_backward",
      "avg_pool3d_backward", "polygamma"});
  add({{0}, {1}}, {"rrelu_with_noise"});
  add({{0}, {}, true}, {"add", "sub", "rsub", "_foreach_add", "_foreach_sub"});
  return all;
}();
std::vector<Tensor> tensors_of(IValue v) {
  std::vector<Tensor> all;
  each(v, [&](const Tensor &t) { return all.push_back(t), t; });
  return all;
}
bool is_number(const IValue &v) {
  return v.isScalar() || (v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu() && v.toTensor().dim() == 0);
}
// Whether a half has another value than a number. Complex ones make another result.
bool rounds(const IValue &v, at::ScalarType half) {
  if (v.isList()) {
    for (const IValue &one : v.toListRef())
      if (rounds(one, half)) return true;
    return false;
  }
  if (!is_number(v)) return false;
  const at::Scalar number = v.isScalar() ? v.toScalar() : v.toTensor().item();
  if (number.isComplex()) return false;
  const double x = number.toDouble();
  return x != (half == at::kHalf ? double(float(c10::Half(float(x)))) : double(float(c10::BFloat16(float(x)))));
}
// An operator's form in float.
class InFloatForm : public c10::OperatorKernel {
 public:
  // how: of the operator's first form; of others the schema says what they write.
  InFloatForm(const c10::FunctionSchema &schema, const InFloat &how)
      : how_(how), mixed_(schema.name().find("norm") != std::string::npos || schema.name().find("log_sigmoid") != std::string::npos), fft_(schema.name().rfind("aten::_fft", 0) == 0) {
    how_.like.resize(schema.returns().size(), -1);
    const auto &arguments = schema.arguments();
    for (size_t i = 0; i < arguments.size(); i++) {
      outs_.push_back(arguments[i].is_out());
      if (arguments[i].name() == "accumulate") accumulate_ = int(i);
      if (arguments[i].name() == "dtype") dtype_ = int(i);
      if (!arguments[i].alias_info() || !arguments[i].alias_info()->isWrite()) continue;
      how_.written.push_back(int(i));
      for (size_t k = 0; k < schema.returns().size(); k++)
        if (const auto *info = schema.returns()[k].alias_info(); info && *info == *arguments[i].alias_info()) how_.like[k] = int(i);
    }
  }

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
    const size_t given = op.schema().arguments().size();
    const torch::jit::Stack narrow(stack->end() - given, stack->end());
    if (!differs(narrow)) return by_the_cpu(op, stack);
    refuse_dtype(op.schema(), narrow);  // which would not be known from wider operands
    if (fft_) refuse_size(op, narrow);
    torch::jit::Stack wide = narrow;
    for (size_t i = 0; i < given; i++)
      each(wide[i], [&](const Tensor &t) {
        return !outs_[i] || !is_half(t) ? widened(t) : at::empty(t.sizes(), t.options().dtype(t.is_complex() ? at::kComplexFloat : at::kFloat));
      });
    std::copy(wide.begin(), wide.end(), stack->end() - given);
    by_the_cpu(op, stack);
    for (int i : how_.written) {
      const auto from = tensors_of(wide[i]), to = tensors_of(narrow[i]);
      for (size_t k = 0; k < to.size(); k++) {
        if (!to[k].defined() || from[k].is_same(to[k])) continue;
        if (from[k].sizes() != to[k].sizes()) to[k].resize_(from[k].sizes());
        to[k].copy_(from[k]);
      }
    }
    const size_t results = stack->size() - how_.like.size();
    for (size_t i = 0; i < how_.like.size(); i++) {
      if (how_.like[i] < 0) continue;
      auto &v = (*stack)[results + i];
      const auto *like = &narrow[how_.like[i]];
      if (std::find(how_.written.begin(), how_.written.end(), how_.like[i]) != how_.written.end()) {
        v = *like;
        continue;
      }
      for (size_t k = 0; is_number(*like); k++) like = &narrow[k];
      if (const auto of = tensors_of(*like); of.size()) each(v, [&](const Tensor &t) { return narrowed(t, of[0]); });
    }
  }

 private:
  // Whether CUDA takes another way than torch's CPU kernel: of halves, which beside them may have parameters of norms in
  // float, what log_sigmoid has kept, and nothing else.
  bool differs(const torch::jit::Stack &given) const {
    if (how_.numbers) {
      const auto first = tensors_of(given[0]);
      if (first.empty() || !is_half(first[0])) return false;
      if (is_number(given[1]) && first[0].dim() == 0 && !given[1].isScalar() && !given[1].toTensor().unsafeGetTensorImpl()->is_wrapped_number())
        return false;  // which has its part in the result's dtype
      const bool alpha = given.size() > 2 && given[2].isScalar() && !given[2].toScalar().equal(1);
      if (!alpha && !rounds(given[1], first[0].scalar_type())) return false;
    }
    if (accumulate_ >= 0 && !given[accumulate_].toBool()) return false;
    if (dtype_ >= 0 && !given[dtype_].isNone()) return false;
    std::optional<at::ScalarType> dtype;
    bool alike = true, halves = false, others = false;
    for (const IValue &v : given) {
      if (is_number(v)) continue;
      for (const Tensor &t : tensors_of(v)) {
        if (!t.defined()) continue;
        halves |= is_half(t), others |= t.is_floating_point() && !is_half(t);
        alike &= t.scalar_type() == dtype.value_or(t.scalar_type());
        dtype = t.scalar_type();
      }
    }
    return halves && (alike || !how_.numbers) && (!others || mixed_);
  }

  // Fourier transforms of halves: CUDA's libraries have them for powers of two.
  static void refuse_size(const c10::OperatorHandle &op, const torch::jit::Stack &given) {
    const auto dimensions = given[1].toIntVector();
    for (int64_t d : dimensions) {
      const bool last = op.schema().name() == "aten::_fft_c2r" && d == dimensions.back();
      const int64_t size = last ? given[3].toInt() : given[0].toTensor().size(d);
      TORCH_CHECK(size > 0 && !(size & (size - 1)), "cuFFT only supports dimensions whose sizes are powers of two when computing "
                  "in half precision, but got a signal size of ", size);
    }
  }

  InFloat how_;
  std::vector<bool> outs_;
  const bool mixed_, fft_;
  int accumulate_ = -1, dtype_ = -1;
};

// A transposed convolution of halves by columns, which are rounded, as its sums are: NaiveConvolutionTranspose2d.cu. given:
// convolution's operands.
Tensor transposed_by_columns(c10::ArrayRef<IValue> given) {
  const Tensor x = given[0].toTensor(), kernel = given[1].toTensor();
  auto both = [&](size_t i) {
    auto v = given[i].toIntVector();
    return v.size() == 1 ? std::vector<int64_t>(2, v[0]) : v;
  };
  const auto stride = both(3), padding = both(4), dilation = both(5), more = both(7);
  const int64_t groups = given[8].toInt(), sizes[] = {kernel.size(2), kernel.size(3)};
  std::vector<int64_t> whole;
  for (int d : {0, 1}) whole.push_back((x.size(2 + d) - 1) * stride[d] + dilation[d] * (sizes[d] - 1) + 1);
  std::vector<Tensor> found;
  for (int64_t g = 0; g < groups; g++) {
    const Tensor columns = at::matmul(widened(kernel.chunk(groups, 0)[g]).flatten(1).t(), widened(x.chunk(groups, 1)[g]).flatten(2));
    found.push_back(at::col2im(widened(narrowed(columns, x)), whole, sizes, dilation, {0, 0}, stride));
  }
  Tensor y = at::constant_pad_nd(at::cat(found, 1), {0, more[1], 0, more[0]});
  for (int d : {0, 1}) y = y.narrow(2 + d, padding[d], whole[d] + more[d] - 2 * padding[d]);
  return narrowed(y, x).contiguous();
}

// cuDNN's result is rounded before the bias is added. It has none with an output padding of a stride or more.
void convolution(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  static InFloatForm in_float(op.schema(), {{0}, {}});
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor x = (*stack)[first].toTensor();
  for (size_t i : {1, 2})
    for (const Tensor &t : tensors_of((*stack)[first + i]))
      TORCH_CHECK(!t.defined() || t.scalar_type() == x.scalar_type(), "Input type (", x.toString(), ") and ", i == 1 ? "weight" : "bias",
                  " type (", t.toString(), ") should be the same");
  const auto stride = (*stack)[first + 3].toIntVector(), padding = (*stack)[first + 7].toIntVector();
  bool by_columns = false;
  for (size_t d = 0; d < padding.size() && (*stack)[first + 6].toBool(); d++) by_columns |= padding[d] >= stride[stride.size() > 1 ? d : 0];
  if (by_columns && (x.dim() != 4 || !is_half(x))) return by_the_cpu(op, stack);
  IValue &bias = (*stack)[first + 2];
  const Tensor apart = bias.isTensor() && is_half(bias.toTensor()) ? bias.toTensor() : Tensor();
  if (apart.defined()) bias = IValue();
  if (by_columns) {
    const Tensor y = transposed_by_columns(c10::ArrayRef<IValue>(stack->data() + first, stack->size() - first));
    torch::jit::drop(*stack, stack->size() - first);
    stack->push_back(y);
  } else {
    in_float(op, {}, stack);
  }
  if (!apart.defined()) return;
  const Tensor y = stack->back().toTensor();
  std::vector<int64_t> shape(y.dim(), 1);
  shape[1] = -1;
  stack->back() = y + apart.view(shape);
}

// CUDA keeps a group's statistics as halves where its elements are, and scales by them: group_norm_kernel.cu.
void group_norm(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const torch::jit::Stack given(stack->end() - 8, stack->end());
  const Tensor x = given[0].toTensor();
  if (!is_half(x)) return by_the_cpu(op, stack);
  for (size_t i = stack->size() - 8; i < stack->size() - 5; i++) each((*stack)[i], widened);
  by_the_cpu(op, stack);
  const size_t first = stack->size() - 3;
  auto of = [&](const IValue &v) {
    const auto all = tensors_of(v);
    return all.size() && all[0].defined() ? widened(all[0]).view({1, given[6].toInt(), -1, 1}) : Tensor();
  };
  for (size_t i = first + 1; i < stack->size(); i++) (*stack)[i] = narrowed((*stack)[i].toTensor(), x);
  const Tensor mean = widened((*stack)[first + 1].toTensor()).unsqueeze(-1).unsqueeze(-1), weight = of(given[1]), bias = of(given[2]);
  Tensor scale = widened((*stack)[first + 2].toTensor()).unsqueeze(-1).unsqueeze(-1);
  if (weight.defined()) scale = scale * weight;
  const Tensor grouped = widened(x).reshape({given[3].toInt(), given[6].toInt(), given[4].toInt() / given[6].toInt(), -1});
  Tensor y;
  if (given[5].toInt() == 1 || (!weight.defined() && !bias.defined()))
    y = bias.defined() ? (grouped - mean) * scale + bias : (grouped - mean) * scale;
  else
    y = grouped * scale + (bias.defined() ? bias - mean * scale : -mean * scale);
  (*stack)[first] = narrowed(y.reshape(x.sizes()), x);
}

// Of running statistics CUDA returns the mean and 1 / standard deviation that it used, the CPU nothing.
void batch_norm(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const torch::jit::Stack given(stack->end() - 8, stack->end());
  InFloatForm(op.schema(), IN_FLOAT.at("native_batch_norm"))(op, {}, stack);
  if (given[5].toBool()) return;
  const auto dtype = at::toAccumulateType(given[0].toTensor().scalar_type(), true);
  stack->end()[-2] = given[3].toTensor().to(dtype, false, true);
  stack->end()[-1] = at::rsqrt(given[4].toTensor().to(dtype) + given[7].toDouble());
}

// Where CUDA's kernel has a dtype that the CPU's lacks.
void of_other_dtype(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  auto &x = (*stack)[stack->size() - op.schema().arguments().size()];
  const auto dtype = x.toTensor().scalar_type();
  const bool counts = op.schema().name() == "aten::histc";
  const bool other = counts ? c10::isIntegralType(dtype, false) : dtype == at::kBool;
  if (other) x = x.toTensor().to(counts ? at::kDouble : at::kByte);
  by_the_cpu(op, stack);
  if (other && op.schema().name() != "aten::trace") stack->back() = stack->back().toTensor().to(dtype);
}

// CUDA has one driver of LAPACK's.
void lstsq(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  IValue &driver = (*stack)[stack->size() - op.schema().arguments().size() + 3];
  TORCH_CHECK(driver.isNone() || driver.toStringView() == "gels",
              "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA");
  driver = "gels";
  by_the_cpu(op, stack);
}

// Which attention there is: any for which CUDA has a kernel among those that a script allows.
int64_t attention(const Tensor &q, const Tensor &k, const Tensor &v, const std::optional<Tensor> &mask, double dropout, bool causal,
                  std::optional<double>, bool grouped) {
  const auto &allowed = at::globalContext();
  const bool half = c10::isReducedFloatingType(q.scalar_type()), matrices = q.dim() == 4;
  const bool flash = half && matrices && !mask && q.size(-1) == v.size(-1) && q.size(-1) <= 256;
  const bool efficient = matrices && (!grouped || q.size(1) == k.size(1)) && (half ? q.size(-1) % 8 == 0 : q.scalar_type() == at::kFloat);
  const bool cudnn = half && matrices && q.size(-1) % 8 == 0 && q.size(-1) <= 128 && v.size(-1) % 8 == 0;
  const bool any = allowed.userEnabledMathSDP() || (allowed.userEnabledFlashSDP() && flash) ||
                   (allowed.userEnabledMemEfficientSDP() && efficient) || (allowed.userEnabledCuDNNSDP() && cudnn);
  TORCH_CHECK(any, "No available kernel. Aborting execution.");
  return 0;  // by torch's own operators
}

// Torch's own, which draws exponential numbers by an operator of the device.
Tensor &multinomial_out(const Tensor &p, int64_t n, bool again, std::optional<at::Generator> generator, Tensor &out) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::multinomial", "out");
  if (!again || n == 1) return at::native::multinomial_out(p, n, again, generator, out);
  torch::jit::Stack stack{p, n, again, generator, out};
  by_the_cpu(op, &stack);
  return out;
}
Tensor multinomial(const Tensor &p, int64_t n, bool again, std::optional<at::Generator> generator) {
  Tensor out = at::empty({0}, p.options().dtype(at::kLong));
  return multinomial_out(p, n, again, generator, out);
}

void record_stream(Tensor &t, c10::Stream) { pool().record(t.storage().data()); }

// The same elements in the same memory.
Tensor to_cuda(const Tensor &t, int64_t device) {
  TORCH_CHECK(0 <= device && device < devices, "CUDA error: invalid device ordinal: device ", device, " of ", devices);
  return alias(t, same_memory(t.storage(), Device(DeviceType::CUDA, DeviceIndex(device))), DispatchKey::CUDA);
}
Tensor to_cpu(const Tensor &t) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_plain(t), "to_cpu of a tensor that is no plain memory, on the emulated device");
  if (t.is_cuda()) ask(uint64_t(1) << t.get_device(), false, "to_cpu");
  return alias(t, same_memory(t.storage(), Device(DeviceType::CPU)), DispatchKey::CPU);
}

struct Quiet : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

// built_with_cuda: whether torch has kernels of its own for the device, of machine code that nothing runs here.
void register_kernels(bool built_with_cuda) {
  static Quiet quiet;  // torch warns of kernels that are replaced
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static auto *all = new torch::Library(torch::Library::IMPL, "_", DispatchKey::CUDA, __FILE__, __LINE__);
  static auto *aten = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
  all->fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
  // Over every operator that has a kernel of its own for `theirs`, and for one of `others` if there are any: composed
  // ones come before a fallback.
  auto over_all = [](torch::Library *library, DispatchKey theirs, auto make, std::initializer_list<DispatchKey> others = {},
                     const char *space = "aten") {
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const auto &name : dispatcher.getAllOpNames()) {
      auto op = name.getNamespace() == space ? dispatcher.findOp(name) : std::nullopt;
      if (!op || !op->hasKernelForDispatchKey(theirs)) continue;
      const bool any = std::any_of(others.begin(), others.end(), [&](auto key) { return op->hasKernelForDispatchKey(key); });
      if (any || !others.size()) library->impl(toString(name).c_str(), make());
    }
  };
  auto whole = [] { return torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>(); };
  if (built_with_cuda)
    over_all(aten, DispatchKey::CUDA, whole);
  else
    over_all(aten, DispatchKey::CPU, whole, {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional});
  auto serve = [&]<DispatchKey host>(DispatchKey key) {
    auto make = [] { return torch::CppFunction::makeFromBoxedFunction<&of_parts_by_the_cpu<host>>(); };
    auto *rest = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    rest->fallback(make());
    auto *known = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    over_all(known, host, make);
    if (built_with_cuda) over_all(known, key, make);
  };
  serve.operator()<DispatchKey::SparseCPU>(DispatchKey::SparseCUDA);
  serve.operator()<DispatchKey::SparseCsrCPU>(DispatchKey::SparseCsrCUDA);
  serve.operator()<DispatchKey::NestedTensorCPU>(DispatchKey::NestedTensorCUDA);
  serve.operator()<DispatchKey::QuantizedCPU>(DispatchKey::QuantizedCUDA);
  // Collectives of groups that have no backend of their own for the device, such as gloo
  static auto *c10d = new torch::Library(torch::Library::IMPL, "c10d", DispatchKey::CUDA, __FILE__, __LINE__);
  over_all(c10d, DispatchKey::CUDA, whole, {}, "c10d");
  // Else torch looks for what the device has registered, and for depthwise ones for what CUDA alone has
  aten->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
  for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
    std::string base = name.getNamespace() == "aten" ? name.name.substr(6) : "";
    auto found = IN_FLOAT.find(base);
    if (found == IN_FLOAT.end() && base.size() && base.back() == '_') found = IN_FLOAT.find((base.pop_back(), base));
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const auto ours = rounded(name);
    if ((found == IN_FLOAT.end() && !ours) || !op) continue;
    if (op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !op->hasKernelForDispatchKey(DispatchKey::CPU)) continue;
    auto kernel = ours ? c10::BoxedKernel::makeFromFunctor(std::make_unique<RoundedForm>(op->schema(), *ours))
                       : c10::BoxedKernel::makeFromFunctor(std::make_unique<InFloatForm>(op->schema(), found->second));
    aten->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedKernel(std::move(kernel)));
  }
  aten->impl("convolution", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  aten->impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&group_norm>());
  for (const char *name : {"native_batch_norm", "_native_batch_norm_legit"})
    aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&batch_norm>());
  for (const char *name : {"histc", "abs", "trace"})
    aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&of_other_dtype>());
  aten->impl("linalg_lstsq", torch::CppFunction::makeFromBoxedFunction<&lstsq>());
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention);
  aten->impl("zero_", zero_);
  aten->impl("multinomial", multinomial);
  aten->impl("multinomial.out", multinomial_out);
  aten->impl("record_stream", record_stream);
  for (const char *name : {"_softmax", "_log_softmax"})
    aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&softmax>());
  for (const char *name : {"_softmax_backward_data", "_log_softmax_backward_data"})
    aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&softmax_backward>());
}

TORCH_LIBRARY(emulated_gpu, m) {
  auto define = [&](const char *schema, auto function) { m.def(schema, torch::dispatch(DispatchKey::CompositeExplicitAutograd, function)); };
  define("to_cuda(Tensor(a) x, int device) -> Tensor(a)", to_cuda);
  define("to_cpu(Tensor(a) x) -> Tensor(a)", to_cpu);
  define("default_generator(int device) -> Generator?", [](int64_t device) { return default_generator(DeviceIndex(device)); });
  define("number_of(ScalarType dtype) -> int", [](at::ScalarType dtype) { return int64_t(dtype); });
  define("resize_storage(Tensor(a!) of, int bytes) -> ()", resize_storage);
  define("done(Tensor[] read, Tensor written, str name) -> ()", done_by_python);
  define("replay(int number, int queue) -> ()", replay);
  define("forget_recorded(int[] numbers) -> ()", forget_recorded);
  define("forbid(Tensor x, str why) -> ()", [](const Tensor &t, std::string why) { t.unsafeGetTensorImpl()->release_storage_and_set_meta_custom_data_ptr_error_msg_(why); });
  define("forbid_storage(int storage, str why) -> ()", [](int64_t storage, std::string why) {
    reinterpret_cast<c10::StorageImpl *>(storage)->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
  });
  define("owns(int storage) -> bool", [](int64_t storage) { return reinterpret_cast<c10::StorageImpl *>(storage)->data_ptr().get_deleter() == &release; });
  define("own(int storage, bool on) -> ()", [](int64_t storage, bool on) {  // from now on, or never again: then it gives its memory back
    auto *of = reinterpret_cast<c10::StorageImpl *>(storage);
    void *p = of->mutable_data_ptr().get();
    if (on && of->data_ptr().get_deleter() != &release) return of->set_data_ptr_noswap({p, p, &release, of->device()});
    TORCH_CHECK(on || of->mutable_data_ptr().compare_exchange_deleter(&release, &c10::detail::deleteNothing), "Expected standard deleter");
    if (!on) release(p);
  });
}

// What DistributedDataParallel asks how long its steps took: nobody knows.
struct Timer : c10d::Timer {
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};
void register_timer() {
  if (!c10d::TimerRegistry()->Has(DeviceType::CUDA))
    c10d::TimerRegistry()->Register(DeviceType::CUDA, [](Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<Timer>(); });
}

}  // namespace emulated

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void emulated_install(int count, emulated::Before before, emulated::Told told, emulated::Undefined undefined,
                             emulated::Spoilt spoilt, int built_with_cuda) {
  using namespace emulated;
  emulated::undefined = undefined, emulated::spoilt = spoilt;
  devices = count;
  emulated::before = before, emulated::told = told;
  pool().open(0, 0);
  pthread_atfork(nullptr, nullptr, [] { for (const Count &one : pool().blocks) forked |= one.ever > 0; });
  host_allocator = c10::GetAllocator(DeviceType::CPU);
  c10::SetAllocator(DeviceType::CPU, &inside_allocator, 255);
  c10::SetAllocator(DeviceType::CUDA, &device_allocator, 255);
  replace_hooks();
  replace_marks();
  register_timer();
  register_kernels(built_with_cuda);
}
EXPORT void emulated_devices(int count) { emulated::devices = count; }
EXPORT void emulated_room(int sms, int threads) { emulated::most_blocks = sms * uint64_t(threads / emulated::THREADS); }
EXPORT void emulated_arena(uint64_t begin, uint64_t end) { emulated::pool().open(begin, end); }
EXPORT int emulated_current() { return emulated::current; }
EXPORT void emulated_set(int device) { emulated::current = DeviceIndex(device); }
EXPORT void emulated_attentive(int on) { emulated::attentive = on; }
EXPORT void emulated_keep(int on) { emulated::pool().keep(on); }
EXPORT void emulated_watch(int on) { emulated::watching = on; }
EXPORT int emulated_capture(int device, int on) {  // the number of the capture that begins
  static int captures = 0;
  emulated::capturing[device] = on ? ++captures : 0;
  emulated::anywhere_captured = false;
  for (auto &one : emulated::capturing) emulated::anywhere_captured = emulated::anywhere_captured || one;
  return captures;
}
EXPORT int64_t emulated_of_capture(int capture, int live, uint64_t *to, int64_t most) { return emulated::pool().of_capture(capture, live, to, most); }
EXPORT int emulated_have(uint64_t at, int on) { return emulated::pool().have(at, on); }
EXPORT void emulated_register(uint64_t at, int64_t bytes) { emulated::pool().enlist(at, bytes); }
EXPORT void emulated_limit(int device, int64_t bytes) { emulated::pool().limit[device] = bytes; }
EXPORT int emulated_written(uint64_t at) { return emulated::pool().written(reinterpret_cast<void *>(at)); }
EXPORT void emulated_spoil(uint64_t at) { emulated::pool().write(reinterpret_cast<void *>(at), false); }
EXPORT int64_t emulated_current_queue(int device) { return emulated::streams[device]; }
EXPORT int64_t emulated_works(emulated::Work *to, int64_t most) {
  using namespace emulated;
  std::lock_guard lock(works_mutex);
  int64_t n = std::min<int64_t>(most, works.size());
  if (!to) {
    std::erase_if(works, [](const Work &work) { return !work.partly; });
    return n;
  }
  std::copy_n(works.begin(), n, to);
  works.erase(works.begin(), works.begin() + n);
  return n;
}
EXPORT int64_t emulated_works_waiting() {
  std::lock_guard lock(emulated::works_mutex);
  return emulated::works.size();
}
EXPORT int64_t emulated_waiting() { return emulated::pool().waiting(); }
EXPORT int64_t emulated_fetch(emulated::Event *to, int64_t most) { return emulated::pool().fetch(to, most); }
EXPORT emulated::Count *emulated_counts(int device, int blocks) {
  return blocks ? &emulated::pool().blocks[device] : &emulated::pool().bytes[device];
}
