# A producer and worker of Sidekiq: acts as in `foreign_shop.py`, with the Redis at its argument. Sidekiq's own processor runs the jobs.
# Also the jobs of `sidekiq -r`, with the Redis of REDIS_URL.
ENV["REDIS_URL"] ||= ARGV.fetch(0)
require "sidekiq"
require "sidekiq/api"
require "sidekiq/processor"

Sidekiq.logger.level = Logger::FATAL
Redis.silence_deprecations = true

class PartnerDown < StandardError; end

class Send
  include Sidekiq::Worker

  def perform(*_args)
    finish = Sidekiq.redis { |c| c.lpop("plan:#{jid}") || c.get("broken") } || "ok"
    Sidekiq.redis { |c| c.rpush("ran", jid) }
    sleep if finish == "hang"
    raise PartnerDown, "the partner is down" unless finish == "ok"
  end
end

module ActiveJob; module QueueAdapters; class SidekiqAdapter; class JobWrapper < Send; end; end; end; end

class Shop
  # Adds jobs: members of the message, and a `plan`. Returns their ids.
  def do_add(queue, jobs)
    jobs.map do |job|
      plan = job.delete("plan")
      item = {"class" => "Send", "args" => [], "queue" => queue, "retry" => 0, "jid" => SecureRandom.hex(12)}.merge(job)
      Sidekiq.redis { |c| c.rpush("plan:#{item["jid"]}", plan) } if plan
      Sidekiq::Client.push(item)
    end
  end

  # Runs the jobs that wait there.
  def do_work(queue)
    options = Sidekiq.options.merge(queues: [queue], strict: true)
    options[:fetch] = Sidekiq::BasicFetch.new(options)
    processor = Sidekiq::Processor.new(nil, options)
    while Sidekiq::Queue.new(queue).size > 0
      begin
        processor.send(:process_one)
      rescue PartnerDown
        next # a processor ends with each failed job, and its manager starts another
      end
    end
  end

  # The time of all retries has come, and Sidekiq's scheduler sees it.
  def do_due
    retries = Sidekiq::RetrySet.new
    retries.each { |job| job.reschedule(Time.now.to_f - 1) }
    Sidekiq::Scheduled::Enq.new.enqueue_jobs(%w[retry])
  end

  def do_plan(jid, plan)
    Sidekiq.redis { |c| c.del("plan:#{jid}"); c.rpush("plan:#{jid}", plan) }
  end

  # The time of one retry has come.
  def do_promote(jid)
    Sidekiq::RetrySet.new.find_job(jid).add_to_queue
  end

  # An operator retries a dead job, or a retry before its time.
  def do_requeue(jid)
    find(jid).retry
  end

  def do_delete(jid)
    find(jid).delete
  end

  # An operator gives up a retry.
  def do_kill(jid)
    Sidekiq::RetrySet.new.find_job(jid).kill
  end

  def do_version
    Sidekiq::VERSION
  end

  private

  def find(jid)
    Sidekiq::DeadSet.new.find_job(jid) || Sidekiq::RetrySet.new.find_job(jid)
  end
end

return unless $PROGRAM_NAME == __FILE__

shop = Shop.new
answers = $stdout.dup
$stdout.reopen($stderr)
$stdin.each_line do |line|
  done = JSON.parse(line).map { |name, *arguments| shop.public_send("do_#{name}", *arguments) }
  answers.puts(JSON.generate(done))
  answers.flush
end
