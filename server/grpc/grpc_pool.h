/* grpc_pool.h - threads that run calls, and the queue before them.
 *
 * gRPC's own threads must not wait, so whatever evaluates tokens runs here: so many calls at a
 * time, and so many that wait.  Calls whose clients have left keep nobody out of the queue. */
#ifndef KK_GRPC_POOL_H
#define KK_GRPC_POOL_H

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kakeya_grpc {

class Pool {
  public:
    struct Job {
        std::function<void()> run;
        std::shared_ptr<const std::atomic<bool>> left; /* set when nobody waits for it any more */
    };

    Pool(int threads, int queue) : most_waiting_(static_cast<size_t>(queue)) {
        try {
            for (int i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
        } catch (...) {
            end();
            throw;
        }
    }
    ~Pool() { end(); }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    /* False: the queue is full, and the job was not taken. */
    bool submit(Job &&job) {
        std::vector<Job> left;
        {
            const std::lock_guard<std::mutex> hold(lock_);
            /* An idle thread takes one at once, whatever the queue may hold. */
            const size_t most = most_waiting_ + (threads_.size() - running_);
            if (waiting_.size() >= most) take_left(&left);
            if (waiting_.size() >= most) return false;
            waiting_.push_back(std::move(job));
        }
        changed_.notify_one();
        for (Job &one : left) one.run(); /* ends at once: its client has left */
        return true;
    }

    /* From a job, before its client hears the end: whoever asks again at once must find the thread
     * free that answered. */
    static void answered() {
        Pool *pool = std::exchange(current(), nullptr);
        if (!pool) return;
        const std::lock_guard<std::mutex> hold(pool->lock_);
        pool->running_--;
    }

  private:
    /* The pool that counts this thread among those that run something. */
    static Pool *&current() {
        static thread_local Pool *pool = nullptr;
        return pool;
    }

    void take_left(std::vector<Job> *to) {
        for (auto at = waiting_.begin(); at != waiting_.end();) {
            if (at->left->load()) {
                to->push_back(std::move(*at));
                at = waiting_.erase(at);
            } else {
                ++at;
            }
        }
    }

    void work() {
        std::unique_lock<std::mutex> hold(lock_);
        for (;;) {
            changed_.wait(hold, [this] { return ending_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            Job job = std::move(waiting_.front());
            waiting_.pop_front();
            running_++;
            hold.unlock();
            current() = this;
            job.run();
            answered();
            job = Job{};
            hold.lock();
        }
    }

    /* Runs what still waits, and joins the threads. */
    void end() {
        {
            const std::lock_guard<std::mutex> hold(lock_);
            ending_ = true;
        }
        changed_.notify_all();
        for (std::thread &t : threads_) t.join();
        threads_.clear();
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<Job> waiting_;
    std::vector<std::thread> threads_;
    size_t most_waiting_, running_ = 0;
    bool ending_ = false;
};

} // namespace kakeya_grpc

#endif
